"""The lock of an app: made once, when the first task needs it."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from celery import Celery

from .redlock import Redlock
from .settings import Settings, settings_from

_redlocks: WeakKeyDictionary[Celery, Redlock] = WeakKeyDictionary()
_making = threading.Lock()


def redlock_of(app: Celery) -> Redlock:
    """Return the app's lock; its connections are made when it is first used.

    Raises:
        ConfigurationError: The settings can't be used.
    """
    redlock = _redlocks.get(app)
    if redlock is None:
        with _making:
            redlock = _redlocks.get(app) or new_redlock(settings_from(app.conf))
            _redlocks[app] = redlock
    return redlock


def new_redlock(settings: Settings) -> Redlock:
    """Return a lock of its own on the app's nodes.

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
    )


def is_enabled(app: Celery) -> bool:
    """Tell whether tasks are locked at all, as the configuration stands at this moment."""
    return app.conf.get("redlock_enabled") is not False
