"""Events of the lock, and observers that can never break it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .errors import shown
from .lease import Lease, holder_of
from .threads import callbacks, dispatch

logger = logging.getLogger(__name__)
_FAILED = "observer failed observer=%r event=%s"


class Acquired(NamedTuple):
    """A lease was granted, `elapsed` seconds after it was first asked for, in `rounds` rounds."""

    lease: Lease
    elapsed: float
    rounds: int


class Refused(NamedTuple):
    """A lock was not acquired: `error` is the LockHeld or QuorumUnavailable that was raised."""

    key: str
    error: Exception


class Released(NamedTuple):
    """A lease that was not lost was released after `held` seconds; told once."""

    lease: Lease
    held: float


class Lost(NamedTuple):
    """A lease ended before it was released. Of one that is not renewed, if its holder finds out."""

    lease: Lease
    reason: str


class NodeDown(NamedTuple):
    """A node went down, or was down at first: `error` is the reason.

    `is_unfit`: it answers, but is not an independent master, which only an operator can mend.
    """

    node: str
    error: str
    is_unfit: bool = False


class NodeUp(NamedTuple):
    """A node is connected; it votes in `votes_in` seconds (0.0: now)."""

    node: str
    votes_in: float


class NodeRefuses(NamedTuple):
    """A node is connected, but refuses to write: `error` is its reply."""

    node: str
    error: str


Event = Acquired | Refused | Released | Lost | NodeDown | NodeUp | NodeRefuses
_ROUTINE = (Acquired, Released, Refused)
_OF_NODES = (NodeDown, NodeUp, NodeRefuses)


class Observer(Protocol):
    """Callback for every event, on the thread in which it happened."""

    def __call__(self, event: Event, /) -> None:
        """Handle `event`."""


def notify(observers: Sequence[Observer], event: Event) -> None:
    """Call every observer; an error of one is logged, and the others are still called.

    Raises:
        BaseException: SystemExit or the like, which an observer raised on a thread of the user's.
    """
    for observer in tuple(observers):
        try:
            observer(event)
        except BaseException as error:
            # It is the user's code, and the lock is in the middle of its own work.
            if not isinstance(error, Exception) and not dispatch.is_own_thread():
                raise
            callbacks.tell(logger.error, _FAILED, observer, type(event).__name__, exc_info=error)


def is_logged(event: Event) -> bool:
    """Return whether an event is to be logged, at the present level of the log."""
    return not isinstance(event, _ROUTINE) or logger.isEnabledFor(logging.DEBUG)


def log_event(event: Event) -> None:
    """Log an event in one line."""
    match event:
        case Lost(lease, reason):
            logger.error(
                "lease lost key=%s holder=%s reason=%s",
                shown(lease.key), shown(holder_of(lease.owner)), reason,
            )  # fmt: skip
        case NodeDown(node, error, is_unfit):
            level = logging.ERROR if is_unfit else logging.WARNING
            logger.log(level, "node down node=%s error=%s", node, error)
        case NodeRefuses(node, error):
            logger.warning("node refuses writes node=%s error=%s", node, error)
        case NodeUp(node, votes_in) if votes_in > 0:
            logger.warning("node guarded node=%s votes_in_s=%.1f", node, votes_in)
        case NodeUp(node, _):
            logger.debug("node up node=%s", node)
        case Acquired(lease, elapsed, rounds):
            logger.debug(
                "lock acquired key=%s holder=%s token=%d elapsed_s=%.6f rounds=%d",
                shown(lease.key), shown(holder_of(lease.owner)), lease.token, elapsed, rounds,
            )  # fmt: skip
        case Released(lease, held):
            holder = shown(holder_of(lease.owner))
            logger.debug(
                "lock released key=%s holder=%s held_s=%.3f", shown(lease.key), holder, held
            )
        case Refused(key, error):
            logger.debug("lock refused key=%s error=%s", shown(key), error)


def log_event_of_leases(event: Event) -> None:
    """Replacement for `log_event` where another lock or process logs the events of nodes."""
    if isinstance(event, _OF_NODES):
        logger.debug("node seen here, too event=%r", event)
    else:
        log_event(event)
