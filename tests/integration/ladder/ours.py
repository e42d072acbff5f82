"""This package's lock, as one more rung."""

from __future__ import annotations

import math
from collections.abc import Sequence

from celery_redlock.redlock import Lease, LockHeld, QuorumUnavailable, Redlock
from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.protocol.quorum import guard_s
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock

from .foils import KEY, Held

_GUARD_S = guard_s(max_ttl=60, max_clock_skew=1)


class Ours:
    """One client. With a clock that leaps its nodes are guarded after a restart, as by default."""

    def __init__(self, urls: Sequence[str], clock: Clock | None = None) -> None:
        self._clock = clock
        self.redlock = Redlock(
            urls,
            node_timeout=20.0,
            idle_timeout=math.inf,
            restart_guard=isinstance(clock, LeapingClock),
            clock=clock,
        )
        self._leases: dict[str, Lease] = {}

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        try:
            lease = self.redlock.acquire(KEY, ttl)
        except (LockHeld, QuorumUnavailable):
            return None
        self._leases[lease.owner] = lease
        return Held(lease.owner, lease.token)

    def release(self, held: Held) -> None:
        """Release what `acquire` returned."""
        self.redlock.release(self._leases[held.value])

    def know_nodes(self) -> None:
        """Connect to every node; the first time, as to one that has been up for long."""
        is_first = not any(node.run_id for node in self.redlock.nodes)
        # A node that waits for its guard is known, too.
        eventually(lambda: all("votes in" in why for why in self._errors()), "all are connected")
        if is_first and isinstance(self._clock, LeapingClock):
            self._clock.leap(_GUARD_S)

    def _errors(self) -> list[str]:
        if isinstance(self._clock, LeapingClock):
            self._clock.leap(0.2)
        return list(self.redlock.check().values())

    def close(self) -> None:
        """Close the connections."""
        self.redlock.close()
