"""Deadlines of a pool process's leases, watched in case the main process stands still.

The main process renews the leases and reports a lost one. While it is stopped or starved, nothing
reports that: the lease ends at its deadline, and another execution may run beside the body.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Collection

from celery_redlock.redlock import Lease
from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.threads.wakeup import Wakeup


class DeadlineWatch:
    """Watch that checks the leases of a pool process when the earliest deadline has come.

    One daemon thread, started with the first lease. Adding a lease costs one comparison, unless its
    deadline is before the next check. Most leases are renewed or released before they are checked.

    Args:
        leases: Leases that are held; the caller adds and removes them.
        clock: Source of the time.
        on_expired: Called once with each lease that has ended while it was held.
    """

    def __init__(
        self, leases: Collection[Lease], clock: Clock, on_expired: Callable[[Lease], object]
    ) -> None:
        self._leases = leases
        self._clock = clock
        self._on_expired = on_expired
        self._reported: set[Lease] = set()
        self._checks_at = math.inf
        self._wakeup: Wakeup | None = None

    def add(self, lease: Lease) -> None:
        """Check `lease`, which the caller has added to the leases, when its deadline comes."""
        if lease.deadline >= self._checks_at:
            return
        if self._wakeup:
            self._wakeup.wake()
            return
        wakeup = Wakeup()
        thread = threading.Thread(
            target=self._run, args=(wakeup,), name="redlock-deadline-watch", daemon=True
        )
        # If no thread can be started, the next lease tries again; the main process watches as well.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._wakeup = wakeup

    def check(self) -> float:
        """Report leases that have ended; return the next check's time, seconds on the clock."""
        # A lease that is added during the check wakes the thread: the check may have missed it.
        self._checks_at = math.inf
        held = list(self._leases)
        self._reported &= set(held)
        ended = [lease for lease in held if lease.lost]
        self._checks_at = min(
            (lease.deadline for lease in held if lease not in ended), default=math.inf
        )
        for lease in ended:
            if lease not in self._reported:
                self._reported.add(lease)
                self._on_expired(lease)
        return self._checks_at

    def _run(self, wakeup: Wakeup) -> None:
        while True:
            wakeup.wait(self.check() - self._clock.now())
