"""The lock: Redlock on N independent Redis masters, with a monotonic fencing token.

It needs redis-py and hiredis, and nothing of Celery.
"""

from .errors import (
    AlreadyDone,
    ConfigurationError,
    LeaseLost,
    LockHeld,
    QuorumUnavailable,
    RedlockError,
)
from .lease import Holder, Lease
from .lock import Redlock

__all__ = [
    "AlreadyDone",
    "ConfigurationError",
    "Holder",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "QuorumUnavailable",
    "Redlock",
    "RedlockError",
]
