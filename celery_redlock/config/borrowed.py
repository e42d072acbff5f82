"""Tasks of another app: Celery gives the tasks of each app to every app of the process."""

from __future__ import annotations

import inspect
from typing import Any

from celery import Celery, _state

from celery_redlock.redlock.errors import ConfigurationError

from .settings import settings_from

BORROWED = "_is_borrowed"
"""Attribute of a task class: whether it was another app's task when it was bound first."""
CHECKED = "_is_checked"
"""Attribute of a task class: whether its options were found right with its app's settings."""


def is_borrowed(task: type[Any], app: Celery) -> bool:
    """Return whether a task class that `app` binds was made of another app's task.

    Of a task that belongs to no app, as those of `shared_task`, it is the first app's where its
    options are right.
    """
    if "_decorated" not in vars(task):
        return False
    body = inspect.unwrap(task.run)
    apps = tuple(_state._get_active_apps())  # type: ignore[attr-defined]  # noqa: SLF001
    is_lent = any(
        _has_checked(one, task, body) or _is_pending(one, body) for one in apps if one is not app
    )
    return is_lent and not _is_pending(app, body)


def is_bystander(app: Celery) -> bool:
    """Return whether an app has no node to lock on, and no singleton task but borrowed ones.

    Raises:
        ConfigurationError: A setting is wrong.
    """
    try:
        settings_from(app.conf)
    except ConfigurationError:
        settings_from(app.conf, needs_nodes=False)
        return all(getattr(task, BORROWED, True) for task in app.tasks.values())
    return False


def _has_checked(app: Celery, task: type[Any], body: object) -> bool:
    # Not `app.tasks`, which finalizes the app.
    known = app._tasks.get(task.name)  # type: ignore[attr-defined]  # noqa: SLF001
    return getattr(known, CHECKED, False) and inspect.unwrap(known.run) is body


def _is_pending(app: Celery, body: object) -> bool:
    """Return whether the app has a task with this body that is not made yet."""
    for proxy in tuple(app._pending):  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            # An attribute of the proxy itself: any other would make the task.
            args = object.__getattribute__(proxy, "_Proxy__args")
        except AttributeError:
            continue
        if args and inspect.unwrap(args[0]) is body:
            return True
    return False
