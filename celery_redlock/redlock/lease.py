"""A lease: one lock, held by one owner, until a deadline."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from .clock import Clock
from .errors import LeaseLost

_HOSTNAME = socket.gethostname()
_RESERVES = "~"


def new_owner(
    label: str | None = None, hostname: str | None = None, *, is_reservation: bool = False
) -> str:
    """Return a fresh owner: 128 random bits, then who it is, for people and tools.

    Args:
        label: What holds the lock: the task's id. None: this process.
        hostname: Where. None: this machine's name.
        is_reservation: Whether nothing runs under it.

    A nonce is never used twice, not even by the next try of the same attempt: re-use would let two
    attempts end with one token.
    """
    mark = _RESERVES if is_reservation else ""
    return f"{secrets.token_hex(16)}{mark}:{label or f'pid-{os.getpid()}'}@{hostname or _HOSTNAME}"


def task_of(owner: str | None) -> str | None:
    """Return the label an owner was made with (a task's id), or None if it carries none."""
    if owner is None:
        return None
    tail = owner.partition(":")[2]
    return tail.rpartition("@")[0] or None


def is_reservation(owner: str | None) -> bool:
    """Tell whether an owner is that of a reservation, under which nothing runs."""
    return owner is not None and owner.partition(":")[0].endswith(_RESERVES)


def host_of(owner: str | None) -> str | None:
    """Return the host an owner was made on, or None if it carries none."""
    if owner is None:
        return None
    return owner.rpartition("@")[2] or None


@dataclass(slots=True, eq=False)
class Lease:
    """A held lock. Single use: when it is lost or released, another one must be acquired.

    Attributes:
        key: Name of the lock.
        owner: The value under which the nodes hold it.
        token: Fencing token: larger than that of every lease on this key that was complete before
            this one was asked for. µs since the epoch, roughly. 0: it is a reservation without one.
        ttl_ms: Expiry set on every node, ms.
        deadline: When it ends unless it is extended, seconds on the boot-time clock, drift taken
            off.
        superseded: The owner that it was to replace; '' for nobody. A node that was slow may take
            that one's grant later than ours: released, it leaves neither.
        took_over: Whether it did replace it, on any node that answered in time.
        hold_until: When its renewal ends, seconds on the boot-time clock; None for never.
        on_extended: Called after each extension, by whoever made it.
        on_lost: Called once when it is lost, by whoever renews it.
        refresh: Brings it up to date, where somebody else renews it.
        verify: Asks a quorum whether it stands; raises LeaseLost if not.
        channel: Over which it was granted.
        is_granted_late: Tells whether there are nodes that have not answered yet; None: none are.
    """

    key: str
    owner: str
    token: int
    ttl_ms: int
    deadline: float
    clock: Clock = field(repr=False)
    acquired_at: float = 0.0
    superseded: str = ""
    took_over: bool = False
    hold_until: float | None = None
    is_lost: bool = False
    is_released: bool = False
    on_extended: Callable[[Lease], None] | None = field(default=None, repr=False)
    on_lost: Callable[[Lease], None] | None = field(default=None, repr=False)
    refresh: Callable[[Lease], None] | None = field(default=None, repr=False)
    verify: Callable[[Lease], None] | None = field(default=None, repr=False)
    channel: object = field(default=None, repr=False)
    is_granted_late: Callable[[], bool] | None = field(default=None, repr=False)

    def remaining(self) -> float:
        """Return the seconds for which this lease may still be trusted; 0.0 when it is over."""
        if self.lost or self.is_released:
            return 0.0
        return max(0.0, self.deadline - self.clock.now())

    @property
    def lost(self) -> bool:
        """True once the lease has ended without being released."""
        if self.refresh and not self.is_lost:
            self.refresh(self)
        return self.is_lost or (not self.is_released and self.deadline <= self.clock.now())

    def ensure(self) -> None:
        """Return only if a quorum of nodes says, now, that this lease still stands.

        It costs one round trip and renews the lease.

        Raises:
            LeaseLost: It was lost or released, or no quorum could be asked: do not write.
            ConfigurationError: It is a reservation, under which nothing is to be written.
        """
        if self.is_released:
            raise LeaseLost(self.key, "it was released")
        if self.lost or self.verify is None:
            raise LeaseLost(self.key)
        self.verify(self)
