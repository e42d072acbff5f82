"""The lock of an app: made once, when the first task needs it."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from celery import Celery

from celery_redlock.redlock import Redlock

from .settings import Settings, settings_from

_redlocks: WeakKeyDictionary[Celery, Redlock] = WeakKeyDictionary()
_making = threading.Lock()


def redlock_of(app: Celery) -> Redlock:
    """Return the app's lock, which connects at its first use.

    Raises:
        ConfigurationError: The settings can't be used.
    """
    redlock = _redlocks.get(app)
    if redlock is None:
        with _making:
            redlock = _redlocks.get(app) or new_redlock(settings_from(app.conf))
            # Each task asks for it. Celery looks for what nobody has set in all of its sources.
            app.conf.setdefault("redlock_enabled", True)
            _redlocks[app] = redlock
    return redlock


def new_redlock(settings: Settings) -> Redlock:
    """Return a new lock on the app's nodes, with connections of its own.

    Raises:
        ConfigurationError: The nodes can't be used.
    """
    return Redlock(
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
    return app.conf.get("redlock_enabled") is not False
