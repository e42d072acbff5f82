"""SingletonTask and @singleton_task: the lock around a task's body."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

from celery import Celery, Task, shared_task, states
from celery.result import EagerResult

from . import conflict, worker
from .execution import Execution
from .keys import TOKEN_PARAMETER, bind, bindable_signature, decorators_signature
from .options import KNOWN_OPTIONS, Lifetime
from .plan import Plan, body_of, new_plan
from .publish import Publication
from .redlock import Lease
from .redlock.errors import ConfigurationError
from .run import current, current_lease
from .runtime import is_enabled, redlock_of

if TYPE_CHECKING:
    from celery.app.task import Context

__all__ = ["SingletonTask", "current_lease", "singleton_task"]
logger = logging.getLogger(__name__)
_Body = TypeVar("_Body", bound=Callable[..., Any])
_Call = Callable[[tuple[Any, ...], dict[str, Any], "Lease | None"], Any]
_DUMP = "_dump_pydantic_arguments"
"""Where Celery, from 5.7 on, keeps what makes a call's pydantic models JSON."""
_RUN = "redlock_run"
"""The attribute of a request that is being executed; its run, once there is one."""
_LOCKED = "redlock_is_locked"
"""The attribute of a class's `__call__` that has the lock around it."""


class _OnTheAppsTask(abc.ABCMeta):
    """Puts the app's own task class below ours.

    ``app.task(base=SingletonTask)`` takes the given base *instead of* the app's; a company's base
    class or Django's `delay_on_commit` would be gone.
    """

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> _OnTheAppsTask:
        app = namespace.get("app")
        if isinstance(app, Celery):
            apps_task = app.Task
            if issubclass(apps_task, bases):
                bases = (apps_task,)
            elif not any(issubclass(base, apps_task) for base in bases):
                bases = (*bases, apps_task)
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        # Whether it is the class's own, of a mixin above it, or was put there later.
        call = cls.__call__
        if bases != (Task,) and call is not SingletonTask.__call__ and not hasattr(call, _LOCKED):
            _lock_around_call(cls, call)
        return cls


class SingletonTask(Task, metaclass=_OnTheAppsTask):  # type: ignore[type-arg]
    """A task of which one execution runs at a time for each task name and arguments.

    Use it as ``base=`` of a task, or write `@singleton_task`. Options are attributes that start
    with ``lock_``; docs/reference/options.md lists them.
    """

    abstract = True
    _plan: Plan | None = None
    _stores_start = False

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the options as soon as the app is known.

        Raises:
            ConfigurationError: It names the task, the option, its value and the remedy.
        """
        super().on_bound(app)
        # Options may be set after this; this is to refuse what is wrong.
        plan = new_plan(cls, app)
        if plan.takes_token:
            if cls.typing:
                cls.__header__ = staticmethod(_without_token(body_of(cls)))  # type: ignore[attr-defined]
            dump = getattr(cls, _DUMP, None)
            if dump is not None and not hasattr(dump, "__wrapped__"):  # a task is bound repeatedly
                setattr(cls, _DUMP, staticmethod(_with_token(dump)))
        if "_stores_start" not in vars(cls):
            cls._stores_start, cls.track_started = bool(cls.track_started), False
        worker.install(app)

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute; an option of the lock counts from the next call on."""
        super().__setattr__(name, value)
        if name.startswith("lock_"):
            self._plan = None

    def __delattr__(self, name: str) -> None:
        """Delete an attribute; see `__setattr__`."""
        super().__delattr__(name)
        if name.startswith("lock_"):
            self._plan = None

    @property
    def lease(self) -> Lease | None:
        """The lease under which this task's body runs; None when it runs without a lock."""
        run = current.get()
        return run.lease if run and run.task is self else None

    @property
    def fencing_token(self) -> int | None:
        """The token of `lease`: pass it to whatever must refuse a stale writer."""
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
    ) -> Any:
        """Publish the task, as `celery.Task.apply_async` does.

        Returns:
            Its result; if its lock is held from publish on and another message has it, the result
            of that one.

        Raises:
            ConfigurationError: An argument can't be part of the lock's key, or one is an option of
                the lock, which a single call can't have.
            LockHeld: It is a duplicate, and ``lock_on_conflict="raise"``.
            QuorumUnavailable: No quorum, and ``lock_on_unavailable="raise"``.
        """
        publish = super().apply_async
        self._refuse_lock_options(options)

        def send(task_id: str | None, headers: dict[str, Any]) -> Any:
            if headers:
                options["headers"] = {**(options.get("headers") or {}), **headers}
            named = {
                "task_id": task_id, "producer": producer, "link": link, "link_error": link_error,
                "shadow": shadow,
            }  # fmt: skip
            # By name, and what was given only: an override may know no others.
            given = {name: value for name, value in named.items() if value is not None}
            return publish(args, kwargs, **given, **options)

        name = self._name_at_publish(args or (), kwargs or {}, options)
        if name is None or self.app.conf.task_always_eager:
            return send(task_id, {})
        given = {**options, "link": link, "link_error": link_error}
        given.setdefault("expires", self.expires)
        lock = self._the_plan().options
        return Publication(self, redlock_of(self.app), lock, name, task_id, given).send(send)

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here and now, as `celery.Task.apply` does, under its lock."""
        result = super().apply(*args, **kwargs)
        ended = getattr(result, "_result", None)
        if isinstance(ended, conflict.Skipped):
            return EagerResult(result.id, ended.duplicate, "REVOKED", name=self.name)
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body: under the lock in an execution, as a plain function otherwise."""
        request = self.request
        if request.called_directly:
            return self._body(args, kwargs, None)
        if _RUN in vars(request):
            # Called by its own body. What is asked is the request and not what runs here: there may
            # be no run, for lack of a lock, and Celery's own `__call__` puts a copy of the request
            # in the place of the first.
            run = vars(request)[_RUN]
            return self._body(args, kwargs, run.lease if run else None)
        return self._perform(request, args, kwargs, self._body)

    def _perform(
        self, request: Context, args: tuple[Any, ...], kwargs: dict[str, Any], body: _Call
    ) -> Any:
        """Run `body` as an execution: under the lock, if any."""
        if not is_enabled(self.app):
            vars(request)[_RUN] = None
            return self._start(args, kwargs, None, body)
        plan = self._the_plan()
        return Execution(
            self,
            request,
            redlock_of(self.app),
            plan.options,
            plan.rule.name_for(args, kwargs),
            lambda lease: self._start(args, kwargs, lease, body),
        ).perform()

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lease: Lease | None, body: _Call
    ) -> Any:
        """Run the body of an execution.

        For `track_started`, Celery would store that the task has started before it has its lock,
        and if it is a copy of a message, over the failure in which the first copy has ended.
        """
        request = self.request
        ignored = request.is_eager or conflict.is_result_ignored(self, request)
        if self._stores_start and not ignored:
            meta = {"pid": os.getpid(), "hostname": request.hostname}
            self.backend.store_result(str(request.id), meta, states.STARTED, request=request)
        return body(args, kwargs, lease)

    def _body(self, args: tuple[Any, ...], kwargs: dict[str, Any], lease: Lease | None) -> Any:
        kwargs = self._with_token(kwargs, lease)
        call = super().__call__
        if getattr(call, "__func__", None) is Task.__call__ and not self.request.called_directly:
            # Celery's own would push a second request.
            return self.run(*args, **kwargs)
        return call(*args, **kwargs)

    def _with_token(self, kwargs: dict[str, Any], lease: Lease | None) -> dict[str, Any]:
        if not self._the_plan().takes_token:
            return kwargs
        return {TOKEN_PARAMETER: lease.token if lease else None, **kwargs}

    def _the_plan(self) -> Plan:
        plan = self._plan
        if plan is None:
            plan = self._plan = new_plan(self, self.app)
        return plan

    def _refuse_lock_options(self, options: dict[str, Any]) -> None:
        # Celery would put them into the message's properties, where nobody reads them.
        for name in sorted(KNOWN_OPTIONS & options.keys()):
            raise ConfigurationError(
                f"task {self.name!r}: {name} is no option of a single call; set it where the task "
                "is defined"
            )

    def _name_at_publish(self, args: Any, kwargs: Any, options: dict[str, Any]) -> str | None:
        """Return the lock's name, or None for a call that is not locked when it is published."""
        if not is_enabled(self.app):
            return None
        plan = self._the_plan()
        dump = getattr(self, _DUMP, None)
        if dump is not None and options.get("serializer") != "pickle":
            # As Celery sends them.
            args, kwargs = dump(args, kwargs)
        if plan.options.lifetime is Lifetime.WHILE_EXECUTING and callable(plan.options.key):
            # It may need what only the worker has.
            return None
        args, kwargs = tuple(args), dict(kwargs)
        try:
            return plan.rule.name_for(args, kwargs)
        except TypeError:
            if plan.rule.accepts(args, kwargs):
                raise  # a `lock_key` function failed
            # Wrong arguments are Celery's to refuse, or with `typing=False` the body's.
            return None


def _lock_around_call(cls: type[Any], call: Callable[..., Any]) -> None:
    """Put the lock around a `__call__` of a class above `SingletonTask`.

    Flask's own pattern calls `self.run` from there and not ours: the task would run unlocked.
    """

    @wraps(call)
    def locked(self: SingletonTask, *args: Any, **kwargs: Any) -> Any:
        def body(args: tuple[Any, ...], kwargs: dict[str, Any], lease: Lease | None) -> Any:
            return call(self, *args, **self._with_token(kwargs, lease))

        request = self.request
        if _RUN in vars(request):
            return call(self, *args, **kwargs)
        if request.called_directly:
            return body(args, kwargs, None)
        return self._perform(request, args, kwargs, body)

    setattr(locked, _LOCKED, True)
    cls.__call__ = locked


def _without_token(run: Callable[..., Any]) -> Callable[..., None]:
    """Return what checks a call's arguments for `run`, whose token callers don't pass."""
    signature, decorators = bindable_signature(run), decorators_signature(run)

    def check_arguments(*args: Any, **kwargs: Any) -> None:
        bind(signature, decorators, args, kwargs)

    return check_arguments


def _with_token(dump: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a call's models JSON when `dump` wants the token among the arguments."""

    @wraps(dump)
    def dump_arguments(args: Any, kwargs: Any) -> Any:
        args, kwargs = dump(args, {**(kwargs or {}), TOKEN_PARAMETER: None})
        return args, {name: value for name, value in kwargs.items() if name != TOKEN_PARAMETER}

    return dump_arguments


@overload
def singleton_task(body: _Body, /) -> SingletonTask: ...
@overload
def singleton_task(
    body: None = None,
    /,
    *,
    app: Celery | None = None,
    base: type[Any] | None = None,
    **options: Any,
) -> Callable[[_Body], SingletonTask]: ...
def singleton_task(
    body: Callable[..., Any] | None = None,
    /,
    *,
    app: Celery | None = None,
    base: type[Any] | None = None,
    **options: Any,
) -> Any:
    """Make a function a task of which one execution runs at a time.

    Like `celery.shared_task`, or like ``app.task`` when `app` is given; every option of those
    passes through, and those that start with ``lock_`` say how it is locked.

    Args:
        body: The function, when the decorator is used without parentheses.
        app: The app to make it a task of; None for every app, as a shared task.
        base: A task class to build on, besides the app's own.
        **options: Celery's and the lock's.

    Raises:
        ConfigurationError: An option is unknown or wrong, when the task is bound to its app.
    """
    _refuse_wrong_arguments(body, app, base)
    if base is None:
        base = SingletonTask
    elif not issubclass(base, SingletonTask):
        base = _OnTheAppsTask(
            f"Singleton{base.__name__}", (SingletonTask, base), {"abstract": True}
        )
    make: Any = app.task if app else shared_task
    decorate = make(base=base, **options)
    return decorate(body) if body else decorate


def _refuse_wrong_arguments(body: object, app: object, base: object) -> None:
    """Refuse what Celery would stumble over later, when the app is finalized.

    Raises:
        ConfigurationError: It names the argument and the remedy.
    """
    if isinstance(body, Celery):
        problem = "got an app for the function; write @singleton_task(app=app)"
    elif body is not None and not callable(body):
        problem = f"got {body!r} for the function; give options by name, as lock_key=[]"
    elif app is not None and not isinstance(app, Celery):
        problem = f"app={app!r} is no Celery app; give the app itself, or none for a shared task"
    elif base is not None and not isinstance(base, type):
        problem = f"base={base!r} is no class; give a task class"
    else:
        return
    raise ConfigurationError(f"singleton_task {problem}")
