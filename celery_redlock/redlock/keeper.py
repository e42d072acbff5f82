"""The keeper: renew leases in batches, report lost ones, make the releases of interrupted callers.

All its work is in `tick`; its thread calls that in time, from the first attempt or lease on.

There is no mutex here: a signal handler that acquires or releases may run at any line of a thread
that does the same.
"""

from __future__ import annotations

import atexit
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from celery_redlock.redlock.protocol.quorum import drift_ms

from .clock import Clock
from .errors import shown
from .keeper_thread import IDLE_S, LOOK_S, KeeperThread
from .lease import Lease, holder_of
from .threads import callbacks, dispatch, native
from .unsettled import ReleaseRequest, UnsettledReleases

_AT_EXIT_S = 1.0
"""Longest time for which releases delay the end of the process."""
_PAUSE_S = 0.005
BATCH = 2000
"""Leases per write."""
_SOONEST_RETRY_S = 0.005
_GIVEN_BACK = "nothing refers to its block any more, so it was released"
_SHARE = 4
"""An extension may take a quarter of the remaining time of its lease."""

OnLease = Callable[[Lease], object]
"""Called with a lease."""


@dataclass(slots=True, eq=False)
class _Kept:
    """One kept lease. A separate object, so that a forgotten lease is not added again.

    Attributes:
        due_at: Time of the next extension, or look, seconds on the clock.
        holder: Object that releases the lease.
        on_extended: Called after each extension.
        on_lost: Called once when it is lost.
        is_renewed: Whether it is renewed here; otherwise another process does that.
    """

    due_at: float
    holder: weakref.ref[object] | None = None
    on_extended: OnLease | None = None
    on_lost: OnLease | None = None
    is_renewed: bool = True


class Keeper:
    """Renewal of every kept lease when a third of its ttl has passed.

    Args:
        clock: Time.
        extend: Extends all given leases in one round, within a number of seconds, and moves the
            deadlines of those that succeed.
        lose: Called once with each of its leases that is lost, in the origin thread: see
            `dispatch`.
        prepare: Called on the thread before the first lease is due, with the seconds until then:
            connecting takes many steps, each of which a busy interpreter may delay.
        release: Makes releases within a number of seconds; returns whether each was confirmed.
        tidy: Called at each tick, with whether any leases are renewed, to close unused connections;
            returns whether any are left, so that the thread goes on.
    """

    def __init__(
        self,
        clock: Clock,
        extend: Callable[[Sequence[Lease], float], object],
        lose: Callable[[Lease], None],
        prepare: Callable[[float], object] = lambda _: None,
        release: Callable[[Sequence[ReleaseRequest], float], Sequence[bool]] = lambda *_: (),
        tidy: Callable[[bool], bool] = lambda _: False,
    ) -> None:
        self._clock = clock
        self._extend = extend
        self._lose = lose
        self._prepare = prepare
        self._tidy = tidy
        self._is_prepared = self._is_untidy = False
        self._kept: dict[Lease, _Kept] = {}
        self._untold: deque[tuple[Lease, _Kept]] = deque()
        self._releases = UnsettledReleases(clock, release)
        self._thread = KeeperThread(clock, self.tick, self._next_due_at, self._has_work)
        _keepers.add(self)

    def forget_all(self) -> None:
        """Forget all leases and releases, as after a fork: they are the parent's."""
        self._kept = {}
        self._is_prepared = False
        self._untold.clear()
        self._releases.forget_all()
        self._thread.forget()

    def stop(self) -> None:
        """Stop all renewals and end the thread."""
        self._kept.clear()
        self._is_prepared = False
        self._thread.stop()

    def end_when_idle(self) -> None:
        """End the thread with its last lease and release: the lock was collected."""
        self._thread.end_when_idle()

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
            holder: Object that releases the lease; if it is collected first, the keeper does, and
                the lease is lost. None: the caller is sure to.
            on_extended: Called after each extension that the keeper has made.
            on_lost: Called once if the lease is lost, after `lose`.

        Raises:
            RuntimeError: No thread can be started now. The next one that can renews the lease.
        """
        at = due_at(lease, self._clock.now())
        self._add(lease, _Kept(at, holder, on_extended, on_lost))

    def watch(self, lease: Lease, on_lost: OnLease) -> None:
        """Call `on_lost` if `lease`, which another process renews, ends before it is forgotten.

        Raises:
            RuntimeError: As in `keep`.
        """
        self._add(lease, _Kept(lease.deadline, on_lost=on_lost, is_renewed=False))

    def _add(self, lease: Lease, kept: _Kept) -> None:
        self._kept[lease] = kept
        self._thread.start()
        self._thread.wake(kept.due_at)

    def forget(self, lease: Lease) -> _Kept | None:
        """Stop renewing, or watching, `lease`; return what was known of it, for `lose`."""
        return self._kept.pop(lease, None)

    def lose(self, lease: Lease, kept: _Kept | None = None) -> None:
        """Mark `lease` as lost, and have the thread report that, unless it finds that itself.

        Args:
            lease: Lease that a thread of its holder's has just found lost.
            kept: Return value of `forget`, if the lease was forgotten before.
        """
        lease.backing.is_lost = True
        # The report interrupts the run of a task. A body that has found the loss may be clearing
        # up: the next renewal, or the release, reports it.
        if kept is None and lease.backing.lock:
            kept = self.forget(lease)
            if kept is None and lease.hold_until is None:
                kept = _Kept(math.inf)  # nobody renews the lease, and reports its end
        if kept and kept.is_renewed:
            self._untold.append((lease, kept))
            self._start_and_wake()

    def hurry(self, lease: Lease) -> None:
        """Extend `lease` as soon as possible, if it is being renewed."""
        if kept := self._kept.get(lease):
            kept.due_at = self._clock.now()
            self._thread.wake()

    def kept(self) -> list[Lease]:
        """Return the leases that are being renewed."""
        return [lease for lease, kept in list(self._kept.items()) if kept.is_renewed]

    # ---- releases

    def register_cleanup(self, release: ReleaseRequest) -> None:
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

    def is_releasing(self, owner: str) -> bool:
        """Return whether the release of `owner` may have to be made yet."""
        return self._releases.is_unsettled(owner)

    def settle(self, owner: str) -> bool:
        """Drop the release of `owner`; return False if it is being made already."""
        return self._releases.settle(owner)

    def release_now(self, owner: str) -> None:
        """Make the release of `owner` now: its caller was interrupted."""
        self._releases.hurry(owner)
        self._thread.wake()

    def make_last_releases(self) -> bool:
        """Have all releases made now, since the process ends; return whether there are any."""
        self._give_back_collected()
        if self._releases:
            self._releases.make_last()
            self._start_and_wake()
        return bool(self._releases)

    def are_last_made(self) -> bool:
        """Return whether the releases of `make_last_releases` are made."""
        return self._releases.are_last_made()

    def take_over(self, lease: Lease) -> None:
        """Release `lease` now: its holder was interrupted before the release began."""
        self.forget(lease)
        release = ReleaseRequest(
            lease.key, lease.owner, 0.0, gone_at(lease), lease.token, lease.superseded,
            lease.delayed_until(self._clock.now()),
        )  # fmt: skip
        self._releases.add(release)
        self._start_and_wake()

    def _start_and_wake(self) -> None:
        with suppress(RuntimeError):  # a thread that is started later does the work
            self._thread.start()
        self._thread.wake()

    # ---- what is due

    def tick(self) -> float:
        """Do all that is due; return the time of the next tick, seconds on the clock."""
        was_prepared, self._is_prepared = self._is_prepared, bool(self.kept())
        if self._is_prepared and not was_prepared:
            self._prepare(self._until_due())
        self._give_back_collected()
        self._report_lost()
        spare = min(LOOK_S, self._until_due())
        try:
            if self._releases.work(spare):
                for lease in list(self._kept):
                    if self._releases.is_taken(lease.owner):
                        self.forget(lease)
        finally:
            self._renew()
        self._is_untidy = self._tidy(bool(self.kept()))
        return min(self._next_due_at(), self._releases.next_at(), self._clock.now() + IDLE_S)

    def _give_back_collected(self) -> None:
        """Release the leases whose holders were collected."""
        for lease, kept in list(self._kept.items()):
            if kept.holder and kept.holder() is None and self.forget(lease):
                # Its holder may still be at work, with the lease alone.
                lease.backing.lost_because = _GIVEN_BACK
                lease.backing.is_lost = True
                self._untold.append((lease, kept))
                self.take_over(lease)

    def _next_due_at(self) -> float:
        if not self._kept:
            return math.inf
        return min((kept.due_at for kept in list(self._kept.values())), default=math.inf)

    def _until_due(self) -> float:
        return max(0.0, self._next_due_at() - self._clock.now())

    def _has_work(self) -> bool:
        return bool(self._kept or self._untold or self._releases or self._is_untidy)

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
        # One that is called back may stop the renewal of others.
        standing = [lease for lease in self._without_ended(due) if lease in self._kept]
        ending = dict.fromkeys(lease for lease in standing if self._is_ending(lease, now))
        # Of one deadline in their order, so that a run can be repeated exactly.
        going_on = [lease for lease in standing if lease not in ending]
        batch = sorted(going_on, key=lambda lease: lease.deadline)[:BATCH]
        try:
            if batch:
                self._extend_batch(batch, self._patience(batch, now))
        finally:
            # After an error as well: leases that stay due would be tried again at once, for ever.
            now = self._clock.now()
            for lease in self._without_ended([*batch, *ending]):
                if kept := self._kept.get(lease):
                    is_ending = self._is_ending(lease, now)
                    kept.due_at = lease.deadline if is_ending else due_at(lease, now)

    def _is_ending(self, lease: Lease, now: float) -> bool:
        """Return whether the keeper does not renew `lease`, be it that it does not any more."""
        kept = self._kept.get(lease)
        return kept is None or not kept.is_renewed or lease.is_past_hold(now)

    def _extend_batch(self, batch: Sequence[Lease], patience: float) -> None:
        """Extend leases, and call `on_extended` of each whose deadline was moved."""
        deadlines = [lease.deadline for lease in batch]
        try:
            self._extend(batch, patience)
        finally:
            for lease, deadline in zip(batch, deadlines, strict=True):
                kept = self._kept.get(lease)
                if kept and kept.on_extended and lease.deadline != deadline:
                    callbacks.call(
                        kept.on_extended, lease,
                        failed="extension not reported key=%s holder=%s", about=_names(lease),
                    )  # fmt: skip

    def _without_ended(self, leases: Iterable[Lease]) -> list[Lease]:
        """Return the leases that are held; forget the others, and report those that were lost."""
        standing = []
        for lease in leases:
            is_lost = lease.lost
            if not is_lost and not lease.is_released:
                standing.append(lease)
            elif (kept := self._kept.pop(lease, None)) and is_lost:
                lease.backing.is_lost = True
                self._untold.append((lease, kept))
        self._report_lost()
        return standing

    def _report_lost(self) -> None:
        """Report every lease that is lost, also after one that is called back has stopped this."""
        while self._untold:
            dispatch.run_in_origin_thread(self._report_loss, *self._untold.popleft())

    def _patience(self, batch: Sequence[Lease], now: float) -> float:
        """Return the longest time for an extension of `batch`, in seconds.

        Meanwhile no other lease may be lost, or come near its deadline without an extension.
        """
        left = patience_for(batch, now)
        for lease in set(self._kept.copy()).difference(batch):
            is_ending = self._is_ending(lease, now)
            last_call = lease.deadline if is_ending else lease.deadline - lease.ttl_ms / 3000
            left = min(left, last_call - now)
        return max(0.0, left)

    def _report_loss(self, lease: Lease, kept: _Kept) -> None:
        for tell in (self._lose if kept.is_renewed else None, kept.on_lost):
            if tell:
                callbacks.call(
                    tell, lease, failed="loss not reported to the holder key=%s holder=%s",
                    about=_names(lease),
                )  # fmt: skip


def _names(lease: Lease) -> tuple[str, str]:
    return shown(lease.key), shown(holder_of(lease.owner))


def gone_at(lease: Lease) -> float:
    """Return when no node has the lock any more, even unreleased, seconds on the clock."""
    return lease.deadline + (lease.lock_delay_ms + drift_ms(lease.expiry_ms)) / 1000


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


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


def _release_at_exit() -> None:
    """Wait for the releases whose callers were interrupted, perhaps by what ends the process."""
    busy = [keeper for keeper in list(_keepers) if keeper.make_last_releases()]
    ends_at = time.monotonic() + _AT_EXIT_S
    while busy and time.monotonic() < ends_at:
        native.original("time", "sleep")(_PAUSE_S)
        busy = [keeper for keeper in busy if not keeper.are_last_made()]


atexit.register(_release_at_exit)
