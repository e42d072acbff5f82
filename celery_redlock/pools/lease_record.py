"""Records that a pool process and the keeper leave for each other in the lease table."""

from __future__ import annotations

import marshal
import struct
import zlib
from typing import NamedTuple

from celery_redlock.redlock import Lease
from celery_redlock.redlock.clock import Clock


class LeaseRecord(NamedTuple):
    """Lease of a pool process, with all that the keeper needs to renew and release it.

    Or an attempt to acquire or reserve a lock, which may be granted a lease yet: it has no token.

    Attributes:
        pid: Process id of the pool process.
        owner: Owner of the lease.
        key: Key of the lock.
        token: Fencing token; 0: an attempt.
        ttl_ms: Time from each renewal to the deadline, ms.
        deadline: End of the lease unless it is renewed, seconds on the boot-time clock.
        acquired_at: Time of the grant, seconds on the boot-time clock.
        hold_until: Time until which it is renewed, seconds on the boot-time clock; None for ever.
        superseded: Owner that it was to replace; '' for none.
        min_hold_until: Time until which the lock key stays in any case, seconds on the boot-time
            clock.
        done: Done mark for other copies of the message; None if there are no copies.
        will_be_redelivered: Whether the message comes again if the process is killed; None if
            Celery decides that after the process has died.
        lock_delay_ms: Time for which the lock stays on the nodes if the process dies, ms.
        successor: Owner of the reservation that gets the lock if the process dies, until Celery
            has published the retry of its task; '' for none.
    """

    pid: int
    owner: str
    key: str
    token: int
    ttl_ms: int
    deadline: float = 0.0
    acquired_at: float = 0.0
    hold_until: float | None = None
    superseded: str = ""
    min_hold_until: float = 0.0
    done: str | None = None
    will_be_redelivered: bool | None = None
    lock_delay_ms: int = 0
    successor: str = ""

    @classmethod
    def of(
        cls,
        lease: Lease,
        *,
        pid: int,
        min_hold_until: float,
        done: str | None,
        will_be_redelivered: bool | None,
        successor: str = "",
    ) -> LeaseRecord:
        """Return the record of `lease`; for the other arguments see the attributes."""
        # Positional: fourteen keywords cost as much as to encode the record.
        return cls(
            pid, lease.owner, lease.key, lease.token, lease.ttl_ms, lease.deadline,
            lease.acquired_at, lease.hold_until, lease.superseded, min_hold_until, done,
            will_be_redelivered, lease.lock_delay_ms, successor,
        )  # fmt: skip

    def new_lease(self, clock: Clock) -> Lease:
        """Return a lease with the fields of this record; of an attempt, one granted now."""
        return Lease(
            key=self.key,
            owner=self.owner,
            token=self.token,
            ttl_ms=self.ttl_ms,
            deadline=self.deadline if self.token else clock.now() + self.ttl_ms / 1000,
            clock=clock,
            acquired_at=self.acquired_at,
            hold_until=self.hold_until,
            superseded=self.superseded,
            lock_delay_ms=self.lock_delay_ms,
        )


class LeaseState(NamedTuple):
    """State of a lease, which the keeper writes for the pool process.

    Attributes:
        nonce: Random part of the lease's owner.
        deadline: End of the lease unless it is renewed, seconds on the boot-time clock.
        is_lost: Whether it is lost.
    """

    nonce: str
    deadline: float
    is_lost: bool

    @classmethod
    def of(cls, lease: Lease) -> LeaseState:
        """Return the state of `lease`."""
        return cls(nonce_of(lease.owner), lease.deadline, lease.backing.is_lost)

    def is_of(self, lease: Lease) -> bool:
        """Tell whether this is the state of `lease`."""
        return self.nonce == nonce_of(lease.owner)


def nonce_of(owner: str) -> str:
    """Return the random part of an owner."""
    return owner[:32]


_HEADER = struct.Struct("=II")
_FORMAT = 2
"""Version of the encoding. Later ones look for repeated values, which a record does not have."""


def encode(record: LeaseRecord | LeaseState | tuple[str]) -> bytes:
    """Return `record` as bytes, with their number and checksum before them."""
    data = marshal.dumps(tuple(record), _FORMAT)
    return _HEADER.pack(len(data), zlib.crc32(data)) + data


def decode(memory: bytes) -> tuple[object, ...] | None:
    """Return the values of the record that begins `memory`, or None unless it is whole.

    It is not if there is none, if it is being written, or if its writer was killed meanwhile.
    """
    size, checksum = _HEADER.unpack_from(memory)
    data = memory[_HEADER.size : _HEADER.size + size]
    if size == 0 or zlib.crc32(data) != checksum:
        return None
    values: tuple[object, ...] = marshal.loads(data)  # noqa: S302  # a process of the same worker
    return values
