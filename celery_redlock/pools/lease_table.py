"""Lease table in memory that the prefork pool's processes share with the keeper.

A pool process writes the record of a lease to a row of the table, and the keeper reads it there: no
message is sent, and nobody is woken. A row survives the death of its process at any byte: its
*phase*, one byte, is written last and tells which record of the row counts. A process that reads
while the other one writes gets a record as it was before or after that, or none: each record has a
checksum.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum

from celery_redlock.redlock import Lease

from .lease_record import LeaseRecord, LeaseState, decode, encode, nonce_of

LEASES_PER_PROCESS = 8
"""Number of leases that one pool process can have in the table, nested in one another."""
ROWS = 1024 * LEASES_PER_PROCESS
_ROW_SIZE = 4096
"""A page, so that rows that are not used take no memory. Its first byte is the row's phase."""
_REVOKED = 8, 64
_STATE = 64, 192
_ATTEMPT = 192, 1408
_LEASE = 1408, _ROW_SIZE
_NEXT_LOOK = ROWS * _ROW_SIZE
_TIME = struct.Struct("d")
"""In native byte order, which Python copies in one piece."""
_IS_SHUTTING_DOWN = _NEXT_LOOK + _TIME.size


class Phase(IntEnum):
    """Which record of a row counts."""

    FREE = 0
    """None."""
    ATTEMPT = 1
    """The attempt, which may become a lease."""
    HELD = 2
    """The lease."""
    RELEASING = 3
    """The lease, whose release has begun: a failed extension is no loss any more."""


class SharedLeaseTable:
    """Table in shared memory, with a row for each lease that a pool process may hold at a time.

    The pool process writes attempt, lease and phase; the keeper writes the state of the lease, or
    that the attempt's task is revoked, and frees the rows of a dead process. After the rows come
    the time of the keeper's next look at them, and a byte that tells whether the worker is being
    shut down.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _IS_SHUTTING_DOWN + 1)

    def note_shutdown(self) -> None:
        """Main process: note that the worker is being shut down. Safe in a signal handler."""
        self._map[_IS_SHUTTING_DOWN] = 1

    def is_shutting_down(self) -> bool:
        """Pool process: tell whether the worker is being shut down."""
        return self._map[_IS_SHUTTING_DOWN] == 1

    # ---- written by the pool process

    def announce(self, row: int, attempt: LeaseRecord) -> bool:
        """Write an attempt before it is made; return False if it is too long for a row.

        Keys of tasks are not: long ones are shortened to a prefix and a digest.
        """
        self.free(row)
        is_written = self._write(row, _ATTEMPT, encode(attempt))
        if is_written:
            self._map[row * _ROW_SIZE] = Phase.ATTEMPT
        return is_written

    def hold(self, row: int, record: LeaseRecord) -> bool:
        """Write a lease; return False if it is too long: the row's attempt counts as before."""
        is_written = self._write(row, _LEASE, encode(record))
        if is_written:
            self._map[row * _ROW_SIZE] = Phase.HELD
        return is_written

    def begin_release(self, row: int) -> None:
        """Note that the row's lease is being released."""
        self._map[row * _ROW_SIZE] = Phase.RELEASING

    def leave_release(self, row: int, record: LeaseRecord) -> None:
        """Write how the row's lease, whose release has failed, is to be released."""
        self._write(row, _LEASE, encode(record))
        self._map[row * _ROW_SIZE] = Phase.RELEASING

    def free(self, row: int) -> None:
        """Note that the row's attempt or lease is over."""
        self._map[row * _ROW_SIZE] = Phase.FREE

    # ---- read by the keeper

    def phase(self, row: int) -> Phase:
        """Return which record of the row counts."""
        return Phase(self._map[row * _ROW_SIZE])

    def attempt(self, row: int) -> LeaseRecord | None:
        """Return the attempt if that counts in the row; None while it changes."""
        if self.phase(row) is not Phase.ATTEMPT:
            return None
        values = self._read(row, _ATTEMPT)
        return LeaseRecord._make(values) if values else None

    def last_lease(self, row: int) -> LeaseRecord | None:
        """Return the last lease that was written to the row, be it over; None while it changes."""
        values = self._read(row, _LEASE)
        return LeaseRecord._make(values) if values else None

    def is_held(self, row: int, owner: str) -> bool:
        """Tell whether the row's lease is that of `owner`, and its release has not begun."""
        # A lease that changes is over.
        return (
            self.phase(row) is Phase.HELD
            and (last := self.last_lease(row)) is not None
            and last.owner == owner
        )

    def left_by(self, pid: int, row: int) -> LeaseRecord | None:
        """Return what the dead process `pid` has left in the row: an attempt, a lease or nothing.

        Nothing of another process: the next one in the same place of the pool has the same rows.
        """
        phase = self.phase(row)
        if phase is Phase.FREE:
            return None
        left = self.attempt(row) if phase is Phase.ATTEMPT else self.last_lease(row)
        return left if left and left.pid == pid else None

    # ---- written by the keeper

    def write_state(self, row: int, lease: Lease) -> None:
        """Write the state of `lease`."""
        self._write(row, _STATE, encode(LeaseState.of(lease)))

    def note_revoked(self, row: int, owner: str) -> None:
        """Note that the task of the row's attempt, which is that of `owner`, is revoked."""
        self._write(row, _REVOKED, encode((nonce_of(owner),)))

    def announce_look(self, at: float) -> None:
        """Write when the keeper looks at the rows next, seconds on the boot-time clock."""
        _TIME.pack_into(self._map, _NEXT_LOOK, at)

    # ---- read by the pool process

    def is_free(self, row: int) -> bool:
        """Tell whether nothing counts in the row."""
        return self._map[row * _ROW_SIZE] == Phase.FREE

    def update_lease(self, row: int, lease: Lease) -> None:
        """Update `lease` from the row if that has its state."""
        values = self._read(row, _STATE)
        state = LeaseState._make(values) if values else None
        if state and state.is_of(lease):
            lease.deadline = max(lease.deadline, state.deadline)
            lease.backing.is_lost = lease.backing.is_lost or state.is_lost

    def is_revoked(self, row: int, owner: str) -> bool:
        """Tell whether the task of the row's attempt, which is that of `owner`, is revoked."""
        return self._read(row, _REVOKED) == (nonce_of(owner),)

    def next_look(self) -> float:
        """Return when the keeper looks at the rows next, seconds on the boot-time clock."""
        at: float = _TIME.unpack_from(self._map, _NEXT_LOOK)[0]
        return at

    def _write(self, row: int, part: tuple[int, int], data: bytes) -> bool:
        begin, end = part
        if len(data) > end - begin:
            return False
        at = row * _ROW_SIZE + begin
        self._map[at : at + len(data)] = data
        return True

    def _read(self, row: int, part: tuple[int, int]) -> tuple[object, ...] | None:
        begin, end = part
        at = row * _ROW_SIZE
        return decode(self._map[at + begin : at + end])
