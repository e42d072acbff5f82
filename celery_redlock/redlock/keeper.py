"""The keeper: renews leases in batches, and says when one is lost.

One real daemon thread a process, started with the first lease, ended when there has been none for
a while, started anew after a fork. `tick` is all it does; the thread only calls it in time. Beside
greenlets it stays: what it waits with there can be used by the thread that made it only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from . import home, native
from .bell import Bell
from .clock import Clock
from .lease import Lease
from .quorum import drift_ms

logger = logging.getLogger(__name__)
_IDLE_S = 10.0
_AFTER_ERROR_S = 0.5
_SOONEST_RETRY_S = 0.005


class Keeper:
    """Extends every kept lease when a third of its ttl has passed.

    Args:
        clock: Time.
        extend: Extends all the given leases in one round; on success it moves their deadlines.
        lose: Called once with a lease whose deadline came first; at home, see `home`.
        prepare: Called on the thread when it starts, before anything is due: connecting takes many
            steps, each of which a busy interpreter may delay.
        spawn: Starts a function on a thread of its own; None for an ordinary daemon thread.
    """

    def __init__(
        self,
        clock: Clock,
        extend: Callable[[Sequence[Lease]], object],
        lose: Callable[[Lease], None],
        prepare: Callable[[], object] = lambda: None,
        spawn: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock
        self._extend = extend
        self._lose = lose
        self._prepare = prepare
        self._spawn = spawn or _start_thread
        self.forget_all()

    def forget_all(self) -> None:
        """Start from nothing, as after a fork: the parent's leases are the parent's."""
        self._lock = native.new_lock()
        self._due: dict[Lease, float] = {}
        self._wakes_at = 0.0
        self._bell: Bell | None = None

    def keep(self, lease: Lease) -> None:
        """Renew `lease` from now on, until it is forgotten, lost or past its `hold_until`."""
        with self._lock:
            self._due[lease] = due = _due_at(lease, self._clock.now())
            if self._bell is None:
                self._bell = bell = Bell()
                self._wakes_at = due
                self._spawn(lambda: self._run(bell))
            elif due < self._wakes_at:
                self._bell.ring()

    def forget(self, lease: Lease) -> None:
        """Renew `lease` no more."""
        with self._lock:
            self._due.pop(lease, None)

    def kept(self) -> list[Lease]:
        """Return the leases that are being renewed."""
        with self._lock:
            return list(self._due)

    def stop(self) -> None:
        """Renew nothing any more, and end the thread."""
        with self._lock:
            self._due.clear()
            bell, self._bell = self._bell, None
            if bell:
                bell.ring()

    def tick(self) -> float:
        """Do what is due; return when to come again, in seconds on the clock."""
        now = self._clock.now()
        with self._lock:
            soonest = min(self._due.values(), default=now + _IDLE_S)
            if soonest > now:
                return soonest
            # What is due soon goes along: leases of one ttl end up in one batch a period.
            batch = [one for one, due in self._due.items() if due <= now + one.ttl_ms / 12_000]
        renewable = [one for one in batch if not one.lost and not _is_past_hold(one, now)]
        try:
            if renewable:
                self._extend(renewable)
        finally:
            # After an error, too: what stays due would be tried again at once, without end.
            for lease in self._reschedule(batch):
                lease.is_lost = True
                home.call(self._tell, lease)
        with self._lock:
            return min(self._due.values(), default=self._clock.now() + _IDLE_S)

    def _reschedule(self, batch: Sequence[Lease]) -> list[Lease]:
        """Note when each of `batch` is due next; return those that have ended."""
        now = self._clock.now()
        over = []
        with self._lock:
            for lease in batch:
                if lease not in self._due:
                    continue
                if lease.lost:
                    over.append(lease)
                if lease.lost or lease.is_released:
                    del self._due[lease]
                else:
                    self._due[lease] = _due_at(lease, now)
        return over

    def _tell(self, lease: Lease) -> None:
        try:
            self._lose(lease)
        except Exception:
            logger.exception("holder not told key=%s owner=%s", lease.key, lease.owner)

    def _run(self, bell: Bell) -> None:
        is_prepared = False
        while True:
            try:
                if not is_prepared:
                    is_prepared = True
                    self._prepare()
                wakes_at = self.tick()
            except Exception as error:  # noqa: BLE001  # it is logged
                home.call(logger.error, "keeper failed, it goes on", exc_info=error)
                wakes_at = self._clock.now() + _AFTER_ERROR_S
            with self._lock:
                # A lease may have come while the tick was under way.
                self._wakes_at = min([wakes_at, *self._due.values()])
            was_rung = bell.wait(self._wakes_at - self._clock.now())
            with self._lock:
                is_idle = not self._due and not was_rung
                if self._bell is bell and is_idle and not native.is_green():
                    self._bell = None
                if self._bell is not bell:
                    bell.close()
                    return


def _due_at(lease: Lease, now: float) -> float:
    """Return when `lease` is to be extended next; for one that is not to be, when it ends."""
    if _is_past_hold(lease, now):
        return lease.deadline
    ttl = lease.ttl_ms / 1000
    third = lease.deadline + drift_ms(lease.ttl_ms) / 1000 - ttl * 2 / 3
    if third > now:
        return third
    # The extension failed: again, in steps that get shorter as the deadline comes near.
    return min(lease.deadline, now + max(_SOONEST_RETRY_S, (lease.deadline - now) / 4))


def _is_past_hold(lease: Lease, now: float) -> bool:
    return lease.hold_until is not None and lease.hold_until <= now


def _start_thread(run: Callable[[], None]) -> None:
    home.start_thread(run, "redlock-keeper")
