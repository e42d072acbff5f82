"""Celery tasks that must not run twice: a Redlock quorum lock around them, with a fencing token."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .redlock import Holder as Holder
    from .redlock import Lease as Lease
    from .redlock import Redlock as Redlock
    from .redlock.errors import AlreadyDone as AlreadyDone
    from .redlock.errors import ConfigurationError as ConfigurationError
    from .redlock.errors import DuplicateTask as DuplicateTask
    from .redlock.errors import LeaseLost as LeaseLost
    from .redlock.errors import LockHeld as LockHeld
    from .redlock.errors import QuorumUnavailable as QuorumUnavailable
    from .redlock.errors import RedlockError as RedlockError
    from .redlock.events import Acquired as Acquired
    from .redlock.events import Event as Event
    from .redlock.events import Lost as Lost
    from .redlock.events import NodeDown as NodeDown
    from .redlock.events import NodeRefuses as NodeRefuses
    from .redlock.events import NodeUp as NodeUp
    from .redlock.events import Observer as Observer
    from .redlock.events import Refused as Refused
    from .redlock.events import Released as Released
    from .signals import lock_acquired as lock_acquired
    from .signals import lock_conflict as lock_conflict
    from .signals import lock_lost as lock_lost
    from .signals import lock_released as lock_released
    from .signals import lock_unavailable as lock_unavailable
    from .signals import lock_wait_began as lock_wait_began
    from .signals import lock_wait_ended as lock_wait_ended
    from .signals import node_down as node_down
    from .signals import node_up as node_up
    from .signals import nodes_checked as nodes_checked
    from .signals import quorum_degraded as quorum_degraded
    from .signals import tick_processed as tick_processed
    from .task import SingletonTask as SingletonTask
    from .task import current_lease as current_lease
    from .task import singleton_task as singleton_task

__version__ = "0.1.0"

_ROOMS = {
    "Holder": "redlock",
    "Lease": "redlock",
    "Redlock": "redlock",
    "AlreadyDone": "redlock.errors",
    "ConfigurationError": "redlock.errors",
    "DuplicateTask": "redlock.errors",
    "LeaseLost": "redlock.errors",
    "LockHeld": "redlock.errors",
    "QuorumUnavailable": "redlock.errors",
    "RedlockError": "redlock.errors",
    "Acquired": "redlock.events",
    "Event": "redlock.events",
    "Lost": "redlock.events",
    "NodeDown": "redlock.events",
    "NodeRefuses": "redlock.events",
    "NodeUp": "redlock.events",
    "Observer": "redlock.events",
    "Refused": "redlock.events",
    "Released": "redlock.events",
    "lock_acquired": "signals",
    "lock_conflict": "signals",
    "lock_lost": "signals",
    "lock_released": "signals",
    "lock_unavailable": "signals",
    "lock_wait_began": "signals",
    "lock_wait_ended": "signals",
    "node_down": "signals",
    "node_up": "signals",
    "nodes_checked": "signals",
    "quorum_degraded": "signals",
    "tick_processed": "signals",
    "SingletonTask": "task",
    "current_lease": "task",
    "singleton_task": "task",
}
__all__ = [*_ROOMS, "__version__"]  # noqa: PLE0604  # still a list of strings


if not TYPE_CHECKING:  # a type checker that sees it takes every name for one that is there

    def __getattr__(name: str) -> object:
        # Resolved on first use, so that the lock can be had without importing Celery.
        if name not in _ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOMS])
