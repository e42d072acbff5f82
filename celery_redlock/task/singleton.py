"""SingletonTask: the lock around a task's body, and a reservation around its publication."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import Celery, Task, states
from celery.exceptions import Reject
from celery.result import EagerResult

from celery_redlock.config.app_lock import has_redlock, is_enabled, log_weak_locking, redlock_of
from celery_redlock.config.callers import refuse_awaitable
from celery_redlock.config.declared_options import refuse_per_call
from celery_redlock.config.task_config import (
    TaskLockConfig,
    checked_at_binding,
    is_celerys_own,
    task_lock_config,
)
from celery_redlock.execution.running import current, executions
from celery_redlock.keys import TOKEN_PARAMETER
from celery_redlock.messages import reservation
from celery_redlock.messages.broker import publish_confirmed
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import headers_to_publish, message_headers
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.worker import signal_handlers, steps

from .apps_task import OnAppsTask, lock_call, with_lock
from .arguments import as_published, as_sent, hide_token, inherits_check, without_token
from .publication import (
    Publication,
    is_next_step,
    is_retry_of,
    reserved_for,
    reserved_key,
)
from .typed_task import P, R, TypedTask

if TYPE_CHECKING:
    from celery.app.task import Context
    from celery.result import AsyncResult

_ROUTING = frozenset({"queue", "exchange", "routing_key"})
_Call = Callable[[tuple[Any, ...], dict[str, Any], "Lease | None"], Any]


class SingletonTask(TypedTask[P, R], metaclass=OnAppsTask):
    """Task of which one execution runs at a time for each task name and arguments.

    Use it as ``base=`` of a task, or write `@singleton_task`. Options are attributes that start
    with ``lock_``; docs/reference/options.md lists them.

    To a type checker it is generic: ``SingletonTask[[int, str], bool]`` takes an int and a str, and
    returns a bool.
    """

    abstract = True
    _config: TaskLockConfig | None = None
    _is_celerys_own = False
    _stores_start = False

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _parameters: object) -> type[SingletonTask]:
            """Return the class itself, as Celery's own does from 5.7 on."""
            return cls

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Validate the options as soon as the app is known.

        Raises:
            ConfigurationError: The message names the task, the option, its value and the remedy.
        """
        super().on_bound(app)
        cls._is_celerys_own = is_celerys_own(cls)
        if cls._is_celerys_own:
            return
        # Annotations may have replaced it; Celery marks what they make of it as a wrapper of it.
        lock_call(cls)
        # Options may be set after this; here wrong ones are refused early.
        config = checked_at_binding(cls, app)
        if config and (config.rule.takes_token or inherits_check(cls)):
            hide_token(cls, config.rule)
        if "_stores_start" not in vars(cls):
            # A registered base has its own value there, and False in the place of Celery's.
            owner = next(base for base in cls.__mro__ if "track_started" in vars(base))
            stores_start = vars(owner).get("_stores_start", cls.track_started)
            cls._stores_start, cls.track_started = bool(stores_start), False
        steps.install(app)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; a lock option takes effect at the next call."""
        super().__setattr__(name, value)
        if name.startswith("lock_"):
            self._config = None

    def __delattr__(self, name: str) -> None:
        """Delete an attribute; see `__setattr__`."""
        super().__delattr__(name)
        self._config = None

    @property
    def lease(self) -> Lease | None:
        """The lease under which this task's body runs; None without a lock."""
        run = current.get()
        return run.lease if run and run.message.task is self else None

    @property
    def fencing_token(self) -> int | None:
        """The token of `lease`: pass it to every store that must refuse a stale writer."""
        lease = self.lease
        return lease.token if lease else None

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[R]:
        """Publish the task, as `celery.Task.apply_async` does.

        Returns:
            The result of the new message; for a duplicate of a message that holds the reservation,
            the result of that message.

        Raises:
            ConfigurationError: An argument can't be part of the lock key, or a lock option was
                given, which is not a per-call option.
            LockHeld: Duplicate call, and ``lock_on_conflict="raise"``.
            QuorumUnavailable: No quorum, and ``lock_on_unavailable="raise"``.
        """
        publish = super().apply_async

        def send_by(producer: Any, task_id: str | None, **more: Any) -> Any:
            named = {
                "task_id": task_id, "producer": producer, "link": link, "link_error": link_error,
                "shadow": shadow,
            }  # fmt: skip
            # By name, and only those given: an override may accept no others.
            given = {name: value for name, value in named.items() if value is not None}
            return publish(args, kwargs, **given, **{**more, **options})

        sent: AsyncResult[R]
        if self._is_celerys_own:
            sent = send_by(producer, task_id)
            return sent
        refuse_per_call(self, options)
        running = self._running
        options["headers"] = headers_to_publish(task_id, options, running)

        def send(task_id: str | None, headers: dict[str, Any]) -> Any:
            options["headers"] = {**options["headers"], **headers}
            if task_id is None or not is_retry_of(self.request, task_id, options):
                return send_by(producer, task_id)
            return publish_confirmed(
                self.app,
                lambda confirming, **how: send_by(producer or confirming, task_id, **how),
                is_patient=Delivery.of(self, self.request).is_patient,
            )

        name = (
            None
            if is_next_step(running, task_id, options)
            else self._key_at_publish(args or (), kwargs or {}, options)
        )
        if name is None or not self._publishes_with_lock or self.app.conf.task_always_eager:
            sent = send(task_id, {})
            return sent
        given = {**options, "link": link, "link_error": link_error}
        given.setdefault("expires", self.expires)
        lock = self._lock_config().options
        sent = Publication(self, redlock_of(self.app), lock, name, task_id, given).send(send)
        return sent

    def shadow_name(self, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        """Return the name for logs and monitors, as `celery.Task.shadow_name` does.

        Celery asks for it with the arguments of the message, when every `apply_async` has run.

        Raises:
            ConfigurationError: An `apply_async` below this class has changed the call's key.
        """
        reserved = reserved_for(options)
        if reserved:
            self._refuse_other_key(reserved, args or (), kwargs or {}, options)
        return super().shadow_name(args, kwargs, options)

    def _refuse_other_key(self, reserved: str, args: Any, kwargs: Any, options: Any) -> None:
        kinds = type(self).__mro__
        below = kinds[kinds.index(SingletonTask) + 1 :]
        publisher = next(kind for kind in below if "apply_async" in vars(kind))
        if publisher is Task:
            return
        config, serializer = self._lock_config(), options.get("serializer", self.serializer)
        key = config.rule.key_for(*as_published(self, args, kwargs, serializer))
        if reserved_key(config.options.lifetime, key) != reserved:
            name = publisher.__name__
            raise ConfigurationError(
                f"task {self.name!r}: {name}.apply_async changes arguments that are part of the "
                f"key, after that is reserved; derive {name} from SingletonTask, so that its "
                "apply_async comes first"
            )

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Publish the task again, to be tried later, as `celery.Task.retry` does.

        Raises:
            Retry: It is published.
            Reject: It is not. With ``acks_late`` the message in hand goes back to the queue, if the
                broker is at fault; otherwise the task has failed.
            LeaseLost: An operator has ended the run: it is not to come back.
        """
        # As in `_perform`: an execution has loaded it, and a producer does not need it.
        from celery_redlock.messages.requeue import (  # noqa: PLC0415
            ending_of_failed_retry,
            route_back,
        )

        run = current.get()
        if run and run.ended_by and run.message.task is self:
            raise run.ended_by
        if self._is_celerys_own:
            return super().retry(*args, **kwargs)
        route = route_back(Delivery.of(self, self.request))
        if "exchange" in route and _ROUTING.isdisjoint(kwargs):
            kwargs |= route
        try:
            return super().retry(*args, **kwargs)
        except Reject as rejected:
            ending = ending_of_failed_retry(self, rejected)
            if ending is rejected:
                raise
            raise ending from rejected

    def apply(self, *args: Any, **kwargs: Any) -> EagerResult[R]:
        """Run the task in this process, as `celery.Task.apply` does, under its lock."""
        # As in `_perform`.
        from celery_redlock.execution.outcomes import Skipped  # noqa: PLC0415

        result = super().apply(*args, **kwargs)
        ended = getattr(result, "_result", None)
        if isinstance(ended, Skipped):
            duplicate: Any = ended.duplicate
            return EagerResult(result.id, duplicate, "REVOKED", name=self.name)
        return result

    def drop(self, *args: Any, **kwargs: Any) -> bool:
        """Release the reservation of this call, as after a purge of its queue.

        The lock of a running body stays. A message that is still queued runs, too, and another
        message can be queued beside it. The period of ``lock_lifetime="until_expired"`` ends, even
        after a run, and also if the task has another lifetime by now.

        Args:
            *args: As given to `delay`.
            **kwargs: As given to `delay`.

        Returns:
            Whether a reservation or a period was released.

        Raises:
            TypeError: The task can't be called with these arguments.
            ConfigurationError: An argument can't be part of the lock's key.
            QuorumUnavailable: Fewer nodes than a quorum could answer, or confirm.
        """
        return reservation.release_all(redlock_of(self.app), self._key_of(args, kwargs))

    @with_lock
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the body: in an execution under the lock, otherwise as a plain function."""
        request = self.request
        result: R
        if request.called_directly:
            result = super().__call__(*args, **self._with_token(kwargs, None))
        elif request in executions:
            # The request tells it, not the current run: an execution without a lock has none.
            result = self._call_below(args, self._with_token_inside(args, kwargs))
        else:
            result = self._perform(request, args, kwargs, self._body)
        return result

    def push_request(self, *args: Any, **kwargs: Any) -> None:
        """Push a copy of the request, which belongs to the same execution.

        A retry publishes its arguments: they are without the token.
        """
        request = self.request
        super().push_request(*args, **kwargs)
        if request in executions:
            executions[self.request] = executions[request]
            if self._lock_config().rule.takes_token:
                self.request.kwargs = without_token(self.request.kwargs or {})

    def _perform(
        self, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any], body: _Call
    ) -> Any:
        """Run `body` as an execution, under the lock unless locking is disabled."""
        # A producer executes nothing, and its start is to be short. A worker has loaded the room
        # before its pool forks.
        from celery_redlock.execution.execution import execute  # noqa: PLC0415
        from celery_redlock.execution.message import Message  # noqa: PLC0415

        if self._is_celerys_own:
            return body(args, kwargs, None)
        if not is_enabled(self.app):
            log_weak_locking(self.app)
            executions[request] = None
            signal_handlers.release_reservation(self, message_headers(request))
            return self._start(request, args, kwargs, None, body)
        config, delivery = self._lock_config(), Delivery.of(self, request)

        def start(lease: Lease | None) -> Any:
            delivery.flag_redelivered()
            result = self._start(request, args, kwargs, lease, body)
            refuse_awaitable(self.name, result)
            return result

        named_by = as_sent(self, args, kwargs) if request.is_eager else (args, kwargs)
        key = config.rule.key_for(*named_by)
        message = Message(delivery, redlock_of(self.app), config.options, key, start)
        return execute(message, max_deliveries=config.max_deliveries)

    def _start(
        self,
        request: Context,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        lease: Lease | None,
        body: _Call,
    ) -> Any:
        """Run the body of an execution.

        For `track_started`, Celery would store that the task has started before it has its lock,
        and if it is a copy of a message, over the failure in which the first copy has ended.

        Nor does it replace ABORTED. A task may have been aborted while it waited for its lock, for
        which Celery's own has started, and the body learns it from the state.
        """
        if self._stores_start and not request.is_eager:
            # As in `_perform`.
            from celery_redlock.execution.outcomes import (  # noqa: PLC0415
                is_aborted,
                is_result_ignored,
            )

            is_ignored = is_result_ignored(self, request, is_error=False)
            if not (is_ignored or is_aborted(self, request, states.STARTED)):
                meta = {"pid": os.getpid(), "hostname": request.hostname}
                self.backend.store_result(str(request.id), meta, states.STARTED, request=request)
        return body(args, kwargs, lease)

    def _body(self, args: tuple[Any, ...], kwargs: dict[str, Any], lease: Lease | None) -> Any:
        return self._call_below(args, self._with_token(kwargs, lease))

    def _call_below(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = super().__call__
        if getattr(call, "__func__", None) is Task.__call__:
            # Celery's own would push a second request.
            return self.run(*args, **kwargs)
        return call(*args, **kwargs)

    def _with_token(self, kwargs: dict[str, Any], lease: Lease | None) -> dict[str, Any]:
        if self._is_celerys_own or not self._lock_config().rule.takes_token:
            return kwargs
        if self.request.called_directly:
            return {TOKEN_PARAMETER: None, **kwargs}
        # The token comes last, so that a message can't choose it.
        return {**kwargs, TOKEN_PARAMETER: lease.token if lease else None}

    def _with_token_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of a call inside an execution, with the token.

        A `__call__` of the task's class passes on the token that it was given. Without one, the
        body calls its own task plainly, and that is under the lock only for the same key.
        """
        if TOKEN_PARAMETER in kwargs or not self._lock_config().rule.takes_token:
            return kwargs
        run = executions[self.request]
        is_locked = run is not None and self._is_key_of(run.lease.key, args, kwargs)
        return {**kwargs, TOKEN_PARAMETER: run.lease.token if run and is_locked else None}

    def _is_key_of(self, key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            return self._lock_config().rule.key_for(*as_sent(self, args, kwargs)) == key
        except Exception:  # noqa: BLE001  # a plain call needs no key, and `lock_key` may fail
            return False

    def _key_of(self, args: Any, kwargs: Any) -> str:
        """Return the lock key of a call, as `delay` makes it."""
        return self._lock_config().rule.key_for(*as_published(self, args, kwargs, self.serializer))

    def _lock_config(self) -> TaskLockConfig:
        config = self._config
        if config is None:
            config = self._config = task_lock_config(self, self.app)
        return config

    @property
    def _running(self) -> Context | None:
        """The request of the execution in which this is called, of this or another task."""
        running = self.app.current_worker_task
        return running.request if running else None

    @property
    def _publishes_with_lock(self) -> bool:
        """Whether a call asks for the app's lock: also once to refuse settings, without a use."""
        lifetime = self._lock_config().options.lifetime
        return lifetime.reserves_at_publish or not has_redlock(self.app)

    def _key_at_publish(self, args: Any, kwargs: Any, options: dict[str, Any]) -> str | None:
        """Return the lock key, or None for a call that reserves nothing at publish."""
        if not is_enabled(self.app):
            log_weak_locking(self.app)
            return None
        config = self._lock_config()
        serializer = options.get("serializer", self.serializer)
        args, kwargs = as_published(self, args, kwargs, serializer)
        if self.typing:
            config.rule.refuse_token(kwargs)
        if not config.options.lifetime.reserves_at_publish and callable(config.options.key):
            # The function may need data that only the worker has.
            return None
        try:
            return config.rule.key_for(args, kwargs)
        except TypeError:
            if config.rule.accepts(args, kwargs):
                raise  # a `lock_key` function failed
            # Celery refuses wrong arguments, or with `typing=False` the body does.
            return None
