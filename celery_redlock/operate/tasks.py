"""Tasks of an app: the key of a call, and the options of the task that a key belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from celery_redlock.config.options import LockOptions
from celery_redlock.config.task_config import is_singleton, task_lock_config
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.suggestion import closest

if TYPE_CHECKING:
    from celery_redlock.task import SingletonTask


def singleton_tasks(app: Any) -> dict[str, SingletonTask]:
    """Return the singleton tasks of an app by name, after it has loaded its modules."""
    app.loader.import_default_modules()
    return {name: one for name, one in sorted(app.tasks.items()) if is_singleton(one)}


def doubt_about(name: str, tasks: Collection[str]) -> str | None:
    """Return what is wrong with the name of a task, and which one was meant; None: it is known.

    Args:
        name: Name of the task.
        tasks: Names of the singleton tasks.
    """
    if name in tasks:
        return None
    close = closest(name, tasks)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(tasks) or 'none'}"
    return f"unknown singleton task {name!r}; {hint}"


def key_of_call(app: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the lock key of a call, as the worker computes it.

    Args:
        app: The app.
        name: Name of the task.
        args: Positional arguments, as JSON has them.
        kwargs: Keyword arguments.

    Raises:
        ConfigurationError: The singleton task is unknown, or can't be called like this.
    """
    tasks = singleton_tasks(app)
    if problem := doubt_about(name, tasks):
        raise ConfigurationError(problem)
    try:
        return task_lock_config(tasks[name], app).rule.key_for(args, kwargs)
    except TypeError as error:
        raise ConfigurationError(f"task {name!r} can't be called so: {error}") from error


def options_of(app: Any, name: str) -> LockOptions | None:
    """Return the lock options of a task; None without an app that knows the task."""
    task = None if app is None else singleton_tasks(app).get(name)
    return None if task is None else task_lock_config(task, app).options
