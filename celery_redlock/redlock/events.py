"""What can be observed of the lock: frozen events, and observers that can never break it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .lease import Lease

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acquired:
    """A lease was granted, `elapsed` seconds after it was first asked for, in `rounds` rounds."""

    lease: Lease
    elapsed: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A lock could not be had: `error` is the LockHeld or QuorumUnavailable that was raised."""

    key: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Released:
    """A lease was given back after `held` seconds."""

    lease: Lease
    held: float


@dataclass(frozen=True, slots=True)
class Lost:
    """A lease ended before it was given back."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDown:
    """A node that was usable, or never tried, can not be used: `error` says why."""

    node: str
    error: str


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node is connected; it votes in `votes_in` seconds (0.0: now)."""

    node: str
    votes_in: float


Event = Acquired | Refused | Released | Lost | NodeDown | NodeUp
_ROUTINE = (Acquired, Released, Refused)


class Observer(Protocol):
    """Anything that is called with every event, on the thread in which it happened."""

    def __call__(self, event: Event, /) -> None:
        """Take note of `event`."""


def notify(observers: Sequence[Observer], event: Event) -> None:
    """Tell every observer; one that raises is logged and does not touch the lock or the others."""
    for observer in observers:
        try:
            observer(event)
        except Exception:
            logger.exception("observer failed observer=%r event=%s", observer, type(event).__name__)


def log_event(event: Event) -> None:
    """The observer that is always there: one line for what an operator must know."""
    if isinstance(event, _ROUTINE) and not logger.isEnabledFor(logging.DEBUG):
        return
    match event:
        case Lost(lease, reason):
            logger.error("lease lost key=%s owner=%s reason=%s", lease.key, lease.owner, reason)
        case NodeDown(node, error):
            logger.warning("node down node=%s error=%s", node, error)
        case NodeUp(node, votes_in) if votes_in > 0:
            logger.warning("node guarded node=%s votes_in_s=%.1f", node, votes_in)
        case NodeUp(node, _):
            logger.debug("node up node=%s", node)
        case Acquired(lease, elapsed, rounds):
            logger.debug(
                "lock acquired key=%s owner=%s token=%d elapsed_s=%.6f rounds=%d",
                lease.key, lease.owner, lease.token, elapsed, rounds,
            )  # fmt: skip
        case Released(lease, held):
            logger.debug("lock released key=%s owner=%s held_s=%.3f", lease.key, lease.owner, held)
        case Refused(key, error):
            logger.debug("lock refused key=%s error=%s", key, error)
