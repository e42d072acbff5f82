"""Restart guard: when a server may vote that may have forgotten its grants."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import struct
import zlib
from dataclasses import dataclass

from celery_redlock.redlock.clock import Clock, SystemClock

from .handshake import Server

_RECORD = struct.Struct("=32sd")
_CHECKSUM = struct.Struct("=I")
_SIZE = _RECORD.size + _CHECKSUM.size


class Sighting:
    """Run id that a process sees at an address, and since when, in memory that it shares.

    The process that creates it writes it, and the processes that it forks read it: one that was
    idle learns from it when the server was replaced. A record that is read while it is written has
    a wrong checksum, and counts as none.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)
        self._writer = os.getpid()

    def write(self, run_id: str, since: float) -> None:
        """Record that `run_id` was first seen at the time `since`, seconds on the clock."""
        if os.getpid() == self._writer:
            record = _RECORD.pack(_digest(run_id), since)
            self._memory[:] = record + _CHECKSUM.pack(zlib.crc32(record))

    def since(self, run_id: str) -> float | None:
        """Return since when `run_id` is seen, seconds on the clock; None: another one is."""
        memory = self._memory[:]
        record = memory[: _RECORD.size]
        seen, since = _RECORD.unpack(record)
        is_whole = _CHECKSUM.pack(zlib.crc32(record)) == memory[_RECORD.size :]
        return float(since) if is_whole and seen == _digest(run_id) else None


def _digest(run_id: str) -> bytes:
    # Of one length, however long the run id is that a server sends.
    return hashlib.blake2b(run_id.encode(), digest_size=32).digest()


@dataclass(slots=True)
class Identity:
    """Server that was last seen at an address.

    Attributes:
        sighting: The same as the process saw it that has forked this one; None: it is not shared.
        run_id: Run id of the server, and its history; None: no server was seen yet.
        seen_at: Time at which it was last seen, seconds on the clock.
        started_at: Latest time at which that server can have been started, seconds on the clock.
        replaced_at: Time at which another server was seen there, seconds on the clock.
    """

    sighting: Sighting | None = None
    run_id: str | None = None
    seen_at: float = -math.inf
    started_at: float = math.inf
    replaced_at: float = -math.inf


_identities: dict[str, Identity] = {}
"""By address. A forked child inherits them, since it may not have seen any server itself."""


class RestartGuard:
    """Restart guard of the servers at one address.

    Args:
        address: The address.
        clock: Time.
        guard_s: Time after a server's start during which it does not vote, seconds; 0.0: none.
        admitted_s: The same for a server that an operator has declared new, seconds <= `guard_s`.
    """

    def __init__(self, address: str, clock: Clock, guard_s: float, admitted_s: float = 0.0) -> None:
        # Times of an injected clock mean nothing to other locks.
        is_shared = type(clock) is SystemClock
        self._identity = _identity_at(address) if is_shared else Identity()
        self.guard_s = guard_s
        self._admitted_s = min(admitted_s, guard_s)

    def votes_from(self, server: Server) -> float:
        """Return when the server may vote, seconds on the clock: its start plus the guard.

        A server that replaced another one at this address, such as a promoted replica, does not
        know the grants of that one, whatever its uptime. For it the guard counts from now, or from
        when the process that has forked this one saw it; also if an operator has admitted it: that
        says nothing about leases at this address. The same goes for a server that was a replica
        meanwhile: it has taken over the data of its master.
        """
        identity, run_id = self._identity, server.run_id + server.history
        # Before the run id: another thread may see the server at the same time.
        seen_at = identity.seen_at
        if identity.run_id not in (None, run_id):
            # Before the run id: another thread that sees this server must not take it for known.
            identity.replaced_at = _replaced_at(identity.sighting, server, seen_at)
        if identity.run_id != run_id:
            identity.started_at = math.inf
            if identity.sighting:
                identity.sighting.write(run_id, server.answered_at)
        identity.run_id = run_id
        identity.seen_at = server.answered_at
        # Negative if the wall clock was set back since the start.
        uptime = max(0.0, float(server.uptime))
        started = identity.started_at = min(identity.started_at, server.answered_at - uptime)
        after_start = self._admitted_s if server.admitted == server.run_id else self.guard_s
        return max(started + after_start, identity.replaced_at + self.guard_s)


def _identity_at(address: str) -> Identity:
    if address not in _identities:
        _identities.setdefault(address, Identity(Sighting()))
    return _identities[address]


def _replaced_at(sighting: Sighting | None, server: Server, seen_at: float) -> float:
    """Return when `server` replaced the one that this process last saw at `seen_at`.

    A sighting from before that does not count: the earlier server was there again since.
    """
    since = sighting.since(server.run_id + server.history) if sighting else None
    if since is None or since <= seen_at:
        return server.answered_at
    return min(since, server.answered_at)
