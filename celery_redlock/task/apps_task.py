"""Metaclass of singleton tasks: on the app's own task class, with the lock around each call."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from celery import Celery

from celery_redlock.config.foreign_options import classes_in_use
from celery_redlock.execution.running import executions

if TYPE_CHECKING:
    from celery_redlock.redlock import Lease

_LOCKED = "redlock_locked"
"""Attribute of a `__call__` that has the lock around it: itself.

Not a flag: `functools.wraps` copies attributes to calls that have no lock around them.
"""
_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def with_lock(call: _Callable) -> _Callable:
    """Mark a `__call__` that has the lock around it."""
    setattr(call, _LOCKED, call)
    return call


class OnAppsTask(abc.ABCMeta):
    """Metaclass that puts the app's own task class below ours.

    ``app.task(base=SingletonTask)`` takes the given base *instead of* the app's; a company's base
    class or Django's `delay_on_commit` would be gone.
    """

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any
    ) -> OnAppsTask:
        """Return the class, based on the app's task class and with the lock around its call."""
        app = namespace.get("app")
        if isinstance(app, Celery):
            apps_task = app.Task
            if issubclass(apps_task, bases):
                bases = (apps_task,)
            elif not any(issubclass(base, apps_task) for base in bases):
                bases = (*bases, apps_task)
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        lock_call(cls)
        if others := classes_in_use(cls):
            _republish_past(cls, others[-1])
        return cls

    def __setattr__(cls, name: str, value: Any) -> None:
        """Set an attribute of the class; a `__call__` gets the lock around it.

        Except for wrappers of the present one, as tools for tracing make them: these are to be told
        if the lock is held.
        """
        super().__setattr__(name, value)
        if name == "__call__" and not _is_locked(inspect.unwrap(value, stop=_is_locked)):
            lock_call(cls)


def _is_locked(call: object) -> bool:
    return getattr(call, _LOCKED, None) is call


def lock_call(cls: type[Any]) -> None:
    """Put the lock around the `__call__` of a subclass of `SingletonTask`, unless it is there.

    The class itself may have it, or a mixin above it. Flask's documented pattern calls `self.run`
    from there, and the task would run unlocked.
    """
    call = cls.__call__
    if _is_locked(call):
        return

    @wraps(call)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        def body(args: tuple[Any, ...], kwargs: dict[str, Any], lease: Lease | None) -> Any:
            return call(self, *args, **self._with_token(kwargs, lease))

        request = self.request
        if request in executions:
            return call(self, *args, **self._with_token_inside(args, kwargs))
        if request.called_directly:
            return body(args, kwargs, None)
        return self._perform(request, args, kwargs, body)

    cls.__call__ = with_lock(locked)


def _republish_past(cls: type[Any], other: Any) -> None:
    """Let the message of a running execution be published again without another package's lock.

    That message itself holds the lock, so that package would discard it as a duplicate. It would be
    lost: a retry, and a task that waits for its lock or for a quorum.
    """
    publish = cls.apply_async

    @wraps(publish)
    def apply_async(self: Any, *args: Any, **options: Any) -> Any:
        # Who publishes a message again gives its id by name, as Celery's signatures do.
        task_id = options.get("task_id")
        if task_id is not None and task_id == self.request.id:
            return super(other, self).apply_async(*args, **options)
        return publish(self, *args, **options)

    del apply_async.__wrapped__  # Celery's annotations would wrap that instead of this
    cls.apply_async = apply_async
