"""The keeper: renew leases in batches, report lost ones, make the releases of interrupted callers.

All its work is in `tick`; its thread calls that in time, from the first attempt or lease on.

There is no mutex here: a signal handler that acquires or releases may run at any line of a thread
that does the same.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from celery_redlock.redlock.protocol.quorum import drift_ms

from .clock import Clock
from .keeper_thread import IDLE_S, LOOK_S, KeeperThread
from .lease import Lease, holder_of
from .threads import dispatch
from .unsettled import ReleaseRequest, UnsettledReleases

logger = logging.getLogger(__name__)
BATCH = 2000
"""Leases per write. A connection buffers at most a MiB for a node that reads slowly."""
_SOONEST_RETRY_S = 0.005
_SHARE = 4
"""An extension may take a quarter of the remaining time of its lease."""

OnLease = Callable[[Lease], object]
"""Called with a lease."""


@dataclass(slots=True, eq=False)
class _Kept:
    """Renewal of one lease. A separate object, so that a forgotten lease is not added again.

    Attributes:
        due_at: Time of the next extension, seconds on the clock.
        holder: Object that releases the lease.
        on_extended: Called after each extension.
        on_lost: Called once when it is lost.
    """

    due_at: float
    holder: weakref.ref[object] | None
    on_extended: OnLease | None
    on_lost: OnLease | None


class Keeper:
    """Renewal of every kept lease when a third of its ttl has passed.

    Args:
        clock: Time.
        extend: Extends all given leases in one round, within a number of seconds, and moves the
            deadlines of those that succeed.
        lose: Called once with each lease that is lost, in the origin thread: see `dispatch`.
        prepare: Called on the thread before the first lease is due: connecting takes many steps,
            each of which a busy interpreter may delay.
        spawn: Starts a function on a new thread; None: on an ordinary daemon thread.
        release: Makes releases within a number of seconds; returns whether each was confirmed.
        tidy: Called at each tick, with whether any leases are kept, to close unused connections;
            returns whether any are left, so that the thread goes on.
    """

    def __init__(
        self,
        clock: Clock,
        extend: Callable[[Sequence[Lease], float], object],
        lose: Callable[[Lease], None],
        prepare: Callable[[], object] = lambda: None,
        spawn: Callable[[Callable[[], None]], object] | None = None,
        release: Callable[[Sequence[ReleaseRequest], float], Sequence[bool]] = lambda *_: (),
        tidy: Callable[[bool], bool] = lambda _: False,
    ) -> None:
        self._clock = clock
        self._extend = extend
        self._lose = lose
        self._tidy = tidy
        self._is_untidy = False
        self._kept: dict[Lease, _Kept] = {}
        self._releases = UnsettledReleases(clock, release)
        self._thread = KeeperThread(
            clock, prepare, self.tick, self._next_due_at, self._has_work, spawn
        )

    def forget_all(self) -> None:
        """Forget all leases and releases, as after a fork: they are the parent's."""
        self._kept = {}
        self._releases.forget_all()
        self._thread.forget()

    def stop(self) -> None:
        """Stop all renewals and end the thread."""
        self._kept.clear()
        self._thread.stop()

    # ---- leases

    def keep(
        self,
        lease: Lease,
        holder: weakref.ref[object] | None = None,
        *,
        on_extended: OnLease | None = None,
        on_lost: OnLease | None = None,
    ) -> None:
        """Renew `lease` from now on, until it is forgotten, lost or past its `hold_until`.

        Args:
            lease: The lease.
            holder: Object that releases the lease; if it is collected first, the keeper does. None:
                the caller is sure to.
            on_extended: Called after each extension that the keeper has made.
            on_lost: Called once if the lease is lost, after `lose`.

        Raises:
            RuntimeError: No thread can be started now. The next one that can renews the lease.
        """
        at = due_at(lease, self._clock.now())
        self._kept[lease] = _Kept(at, holder, on_extended, on_lost)
        self._thread.start()
        self._thread.wake(at)

    def forget(self, lease: Lease) -> None:
        """Stop renewing `lease`."""
        self._kept.pop(lease, None)

    def hurry(self, lease: Lease) -> None:
        """Extend `lease` as soon as possible, if it is being renewed."""
        if kept := self._kept.get(lease):
            kept.due_at = self._clock.now()
            self._thread.wake()

    def kept(self) -> list[Lease]:
        """Return the leases that are being renewed."""
        return list(self._kept)

    # ---- releases

    def answer_for(self, release: ReleaseRequest) -> None:
        """Make `release` when it is due, unless it is settled before.

        Raises:
            RuntimeError: No thread can be started now; the release will not be made.
        """
        self._releases.add(release)
        try:
            self._thread.start()
        except RuntimeError:
            self._releases.settle(release.owner)
            raise

    def settle(self, owner: str) -> bool:
        """Drop the release of `owner`; return False if it is being made already."""
        return self._releases.settle(owner)

    def finish(self, owner: str) -> None:
        """Make the release of `owner` now: its caller was interrupted."""
        self._releases.hurry(owner)
        self._thread.wake()

    def take_over(self, lease: Lease) -> None:
        """Release `lease` now: its holder was interrupted before the release began."""
        self.forget(lease)
        ends_at = lease.deadline + drift_ms(lease.ttl_ms) / 1000
        release = ReleaseRequest(
            lease.key, lease.owner, 0.0, ends_at, lease.token, lease.superseded
        )
        self._releases.add(release)
        with suppress(RuntimeError):  # a thread that is started later makes it
            self._thread.start()
        self._thread.wake()

    # ---- what is due

    def tick(self) -> float:
        """Do all that is due; return the time of the next tick, seconds on the clock."""
        for lease, kept in list(self._kept.items()):
            if kept.holder and kept.holder() is None:
                self.take_over(lease)
        spare = min(LOOK_S, max(0.0, self._next_due_at() - self._clock.now()))
        try:
            if self._releases.work(spare):
                for lease in self.kept():
                    if self._releases.is_taken(lease.owner):
                        self.forget(lease)
        finally:
            self._renew()
        self._is_untidy = self._tidy(bool(self._kept))
        return min(self._next_due_at(), self._releases.next_at(), self._clock.now() + IDLE_S)

    def _next_due_at(self) -> float:
        if not self._kept:
            return math.inf
        return min((kept.due_at for kept in list(self._kept.values())), default=math.inf)

    def _has_work(self) -> bool:
        return bool(self._kept or self._releases or self._is_untidy)

    def _renew(self) -> None:
        """Report lost leases, and extend one batch of those that are due; the rest stays due."""
        now = self._clock.now()
        if self._next_due_at() > now:
            return
        # Leases that are due soon go along, so that leases of one ttl end up in one batch.
        due = [
            lease
            for lease, kept in list(self._kept.items())
            if kept.due_at <= now + lease.ttl_ms / 12_000
        ]
        standing = self._without_ended(due)
        ending = [lease for lease in standing if lease.is_past_hold(now)]
        batch = sorted(set(standing).difference(ending), key=lambda lease: lease.deadline)[:BATCH]
        try:
            if batch:
                self._extend_batch(batch, self._patience(batch, now))
        finally:
            # After an error as well: leases that stay due would be tried again at once, for ever.
            now = self._clock.now()
            for lease in self._without_ended([*batch, *ending]):
                if kept := self._kept.get(lease):
                    kept.due_at = due_at(lease, now)

    def _extend_batch(self, batch: Sequence[Lease], patience: float) -> None:
        """Extend leases, and call `on_extended` of each whose deadline was moved."""
        deadlines = [lease.deadline for lease in batch]
        try:
            self._extend(batch, patience)
        finally:
            for lease, deadline in zip(batch, deadlines, strict=True):
                kept = self._kept.get(lease)
                if kept and kept.on_extended and lease.deadline != deadline:
                    kept.on_extended(lease)

    def _without_ended(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases that are held; forget the others, and report those that were lost."""
        standing = []
        for lease in leases:
            is_lost = lease.lost
            if not is_lost and not lease.is_released:
                standing.append(lease)
            elif (kept := self._kept.pop(lease, None)) and is_lost:
                lease.is_lost = True
                dispatch.run_in_origin_thread(self._tell_lost, lease, kept.on_lost)
        return standing

    def _patience(self, batch: Sequence[Lease], now: float) -> float:
        """Return the longest time for an extension of `batch`, in seconds.

        Meanwhile no other lease may be lost, or come near its deadline without an extension.
        """
        left = patience_for(batch, now)
        for lease in set(self.kept()).difference(batch):
            is_ending = lease.is_past_hold(now)
            last_call = lease.deadline if is_ending else lease.deadline - lease.ttl_ms / 3000
            left = min(left, last_call - now)
        return max(0.0, left)

    def _tell_lost(self, lease: Lease, on_lost: OnLease | None) -> None:
        try:
            self._lose(lease)
            if on_lost:
                on_lost(lease)
        except Exception:
            logger.exception(
                "loss not reported to the holder key=%s holder=%s",
                lease.key,
                holder_of(lease.owner),
            )


def patience_for(leases: Iterable[Lease], now: float) -> float:
    """Return the longest time for an extension of these leases, in seconds."""
    return max(0.0, min((lease.deadline - now for lease in leases), default=0.0) / _SHARE)


def due_at(lease: Lease, now: float) -> float:
    """Return the time of the next extension of `lease`; past its `hold_until`, its deadline."""
    if lease.is_past_hold(now):
        return lease.deadline
    ttl = lease.ttl_ms / 1000
    third = lease.deadline + drift_ms(lease.ttl_ms) / 1000 - ttl * 2 / 3
    if third > now:
        return third
    # The extension failed: retry at intervals that shrink as the deadline comes near.
    return min(lease.deadline, now + max(_SOONEST_RETRY_S, (lease.deadline - now) / _SHARE))
