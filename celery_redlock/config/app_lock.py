"""The lock of an app: made once, when the first task needs it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery

from celery_redlock.redlock.task_lock import TaskLock

from .settings import Settings, settings_from

logger = logging.getLogger(__name__)
_ENABLED = "redlock_enabled"
_redlocks: WeakKeyDictionary[Celery, TaskLock] = WeakKeyDictionary()


def redlock_of(app: Celery) -> TaskLock:
    """Return the app's lock, which connects at its first use.

    Raises:
        ConfigurationError: The settings can't be used.
    """
    redlock = _redlocks.get(app)
    if redlock is None:
        # Another thread may have been first.
        redlock = _redlocks.setdefault(app, new_redlock(settings_from(app.conf)))
    return redlock


def has_redlock(app: Celery) -> bool:
    """Return whether the app's lock is made, so that its settings can be used."""
    return app in _redlocks


@contextmanager
def another_redlock(app: Celery) -> Iterator[None]:
    """Have the app's lock made anew inside the block, by the settings there; then closed."""
    before = _redlocks.pop(app, None)
    try:
        yield
    finally:
        made = _redlocks.pop(app, None)
        if before is not None:
            _redlocks[app] = before
        if made is not None:
            made.close()


def new_redlock(settings: Settings) -> TaskLock:
    """Return a new lock on the app's nodes, with connections of its own.

    Raises:
        ConfigurationError: The nodes can't be used.
    """
    return TaskLock(
        settings.nodes,
        node_timeout=settings.node_timeout,
        max_ttl=settings.max_ttl,
        max_clock_skew=settings.max_clock_skew,
        restart_guard=settings.restart_guard,
        key_prefix=settings.key_prefix,
        idle_timeout=settings.idle_timeout,
        max_connections=settings.max_connections,
    )


def is_enabled(app: Celery) -> bool:
    """Return whether tasks are locked at all, by the present configuration."""
    celery: Any = app
    conf = celery.conf
    if not celery.configured:
        conf.get(_ENABLED)  # Celery loads the configuration now
    names: tuple[str, ...] = (_ENABLED,)
    if prefix := conf.prefix:
        given = prefix + _ENABLED
        names = (given.upper() if prefix.isupper() else given.lower(), _ENABLED)
    # As Celery finds it. Each task asks, and Celery takes ten times as long for what nobody has
    # set: it raises and catches an error for each name and source.
    for source in conf.maps:
        for name in names:
            if name in source:
                return source[name] is not False
    return True


def log_weak_locking(app: Celery) -> None:
    """Log that tasks are not locked, or that a fall-back is the only node: once in each process.

    Raises:
        ConfigurationError: The settings can't be used.
    """
    if is_enabled(app):
        settings_from(app.conf)
    else:
        _warn_disabled(is_heard=logger.hasHandlers())


@functools.cache
def _warn_disabled(*, is_heard: bool) -> None:  # noqa: ARG001  # once more when there is a log
    logger.warning("locking switched off: redlock_enabled is False, tasks run without a lock")
