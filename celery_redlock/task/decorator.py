"""@singleton_task: a function made a singleton task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from celery import Celery, shared_task

from celery_redlock.redlock.errors import ConfigurationError

from .singleton import OnAppsTask, SingletonTask

_Body = TypeVar("_Body", bound=Callable[..., Any])


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
    """Make a function a task of which one execution runs at a time for each lock key.

    Like `celery.shared_task`, or like ``app.task`` when `app` is given. All their options pass
    through; options that start with ``lock_`` configure the lock.

    Args:
        body: The function, when the decorator is used without parentheses.
        app: The app to make it a task of; None for every app, as a shared task.
        base: A task class to build on, besides the app's own.
        **options: Options of Celery and of the lock.

    Raises:
        ConfigurationError: An option is unknown or wrong, when the task is bound to its app.
    """
    _refuse_wrong_arguments(body, app, base)
    if base is None:
        base = SingletonTask
    elif not issubclass(base, SingletonTask):
        base = OnAppsTask(f"Singleton{base.__name__}", (SingletonTask, base), {"abstract": True})
    make: Any = app.task if app else shared_task
    decorate = make(base=base, **options)
    return decorate(body) if body else decorate


def _refuse_wrong_arguments(body: object, app: object, base: object) -> None:
    """Refuse arguments that Celery would fail on later, when the app is finalized.

    Raises:
        ConfigurationError: The message names the argument and the remedy.
    """
    if isinstance(body, Celery):
        problem = "got an app for the function; write @singleton_task(app=app)"
    elif body is not None and not callable(body):
        problem = f"got {body!r} for the function; give options by name, as lock_key=[]"
    elif app is not None and not isinstance(app, Celery):
        problem = (
            f"app={app!r} is not a Celery app; give the app itself, or omit it for a shared task"
        )
    elif base is not None and not isinstance(base, type):
        problem = f"base={base!r} is not a class; give a task class"
    else:
        return
    raise ConfigurationError(f"singleton_task {problem}")
