"""Celery tasks that must not run twice: a Redlock quorum lock around them, with a fencing token."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .redlock import Lease as Lease
    from .redlock import Redlock as Redlock
    from .redlock.errors import ConfigurationError as ConfigurationError
    from .redlock.errors import DuplicateTask as DuplicateTask
    from .redlock.errors import LeaseLost as LeaseLost
    from .redlock.errors import LockHeld as LockHeld
    from .redlock.errors import QuorumUnavailable as QuorumUnavailable
    from .redlock.errors import RedlockError as RedlockError
    from .signals import lock_acquired as lock_acquired
    from .signals import lock_conflict as lock_conflict
    from .signals import lock_lost as lock_lost
    from .signals import lock_released as lock_released
    from .task import SingletonTask as SingletonTask
    from .task import current_lease as current_lease
    from .task import singleton_task as singleton_task

__version__ = "0.1.0"

_ROOMS = {
    "Lease": "redlock",
    "Redlock": "redlock",
    "ConfigurationError": "redlock.errors",
    "DuplicateTask": "redlock.errors",
    "LeaseLost": "redlock.errors",
    "LockHeld": "redlock.errors",
    "QuorumUnavailable": "redlock.errors",
    "RedlockError": "redlock.errors",
    "lock_acquired": "signals",
    "lock_conflict": "signals",
    "lock_lost": "signals",
    "lock_released": "signals",
    "SingletonTask": "task",
    "current_lease": "task",
    "singleton_task": "task",
}
__all__ = [*_ROOMS, "__version__"]  # noqa: PLE0604  # a list of strings all the same


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
