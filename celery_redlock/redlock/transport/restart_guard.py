"""Restart guard: when a server may vote that may have forgotten its grants."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_redlock.redlock.clock import Clock, SystemClock

from .handshake import Server


@dataclass(slots=True)
class Identity:
    """Server that was last seen at an address.

    Attributes:
        run_id: Run id of the server; None: no server was seen yet.
        started_at: Latest time at which that server can have been started, seconds on the clock.
        replaced_at: Time at which another server was seen there, seconds on the clock.
    """

    run_id: str | None = None
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
        self._identity = _identities.setdefault(address, Identity()) if is_shared else Identity()
        self.guard_s = guard_s
        self._admitted_s = min(admitted_s, guard_s)

    def votes_from(self, server: Server) -> float:
        """Return when the server may vote, seconds on the clock: its start plus the guard.

        A server that replaced another one at this address, such as a promoted replica, does not
        know the grants of that one, whatever its uptime. For it the guard counts from now, also if
        an operator has admitted it: that says nothing about leases at this address.
        """
        identity = self._identity
        if identity.run_id not in (None, server.run_id):
            # Before the run id: another thread that sees this server must not take it for known.
            identity.replaced_at = server.answered_at
        if identity.run_id != server.run_id:
            identity.started_at = math.inf
        identity.run_id = server.run_id
        # Negative if the wall clock was set back since the start.
        uptime = max(0.0, float(server.uptime))
        started = identity.started_at = min(identity.started_at, server.answered_at - uptime)
        after_start = self._admitted_s if server.admitted == server.run_id else self.guard_s
        return max(started + after_start, identity.replaced_at + self.guard_s)
