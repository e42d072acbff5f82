"""Shared memory between the prefork pool's processes and the keeper of their leases."""

from __future__ import annotations

import mmap
import struct

from .redlock import Lease

_RECORD = struct.Struct("=16sdB7x16sB7x")
_CHILDS_PART = 32
"""Where in a record begins what the child writes."""
LEASES_A_CHILD = 8
"""How many leases a child can have on the board, one nested in the other."""
SLOTS = 4096 * LEASES_A_CHILD


def _nonce(lease: Lease) -> bytes:
    """Return what tells a lease from every other: the random part of its owner."""
    return bytes.fromhex(lease.owner[:32])


class Board:
    """Shared memory: a record for each lease that a child may hold at a time.

    The main process writes whose record it is, the deadline and whether the lease is lost; the
    child writes, behind that, which lease it gives back, and whether it has.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SLOTS * _RECORD.size)

    def post(self, slot: int, lease: Lease) -> None:
        """Main process: write how `lease` stands."""
        record = _RECORD.pack(_nonce(lease), lease.deadline, lease.is_lost, b"", 0)
        at = slot * _RECORD.size
        self._map[at : at + _CHILDS_PART] = record[:_CHILDS_PART]

    def read(self, slot: int, lease: Lease) -> None:
        """Child: bring `lease` up to date, if the record is its own."""
        nonce, deadline, is_lost, *_ = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        if nonce == _nonce(lease):
            lease.deadline = max(lease.deadline, deadline)
            lease.is_lost = lease.is_lost or bool(is_lost)

    def give_back(self, slot: int, lease: Lease, *, is_done: bool) -> None:
        """Child: say that `lease` is being given back, or that it has been."""
        record = _RECORD.pack(b"", 0.0, 0, _nonce(lease), is_done)
        at = slot * _RECORD.size
        self._map[at + _CHILDS_PART : at + _RECORD.size] = record[_CHILDS_PART:]

    def is_being_given_back(self, slot: int, lease: Lease) -> bool:
        """Main process: tell whether the child has said so, or that it has been."""
        *_, nonce, _is_done = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        return bool(nonce == _nonce(lease))

    def is_given_back(self, slot: int, lease: Lease) -> bool:
        """Main process: tell whether the child has said that it has been given back."""
        *_, nonce, is_done = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        return bool(is_done and nonce == _nonce(lease))
