"""The queue of ticks that one replica still has to process, in the order of their slots."""

from __future__ import annotations

import logging
import math
import os
import random
import signal
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial

from kombu.exceptions import OperationalError

from celery_redlock.config.settings import BeatSettings
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, RedlockError, shown
from celery_redlock.signals import tick_processed
from celery_redlock.throttled_log import ThrottledLog

from .slots import Moment
from .ticks import CLAIM_S, Claims, Tick

logger = logging.getLogger(__name__)
_AGAIN_S = 1.0
_QUIET_S = 60.0
_PAUSE_S = 30.0
"""Other replicas may publish every tick since a failure here; it counts for so long."""
_LONGEST_WORK_S = 5.0
_MOST_NOTED = 100
_NOTE_AGAIN_S = 5.0
# A host's name may be any bytes, and is then not text.
_REPLICA = shown(socket.gethostname())


class Outcome(Enum):
    """The outcome of processing a tick at this replica."""

    DONE = "done"
    LATER = "later"
    BLOCKED = "blocked"


class TickQueue:
    """Queue of ticks: claim, publish and mark each, or leave it to another replica.

    Attributes:
        busy_since: When this replica's work began that has not paused since, seconds on the
            boot-time clock; infinity: it is not at work.

    Args:
        claims: The claims of this replica.
        publish: Publishes a tick's message.
        is_clock_right: Returns whether the wall clock can be trusted.
        settings: Beat's settings.
    """

    _blocked_by = ""
    """What keeps all ticks from being published, as the last failure has shown; '': nothing."""

    def __init__(
        self,
        claims: Claims,
        publish: Callable[[Tick], object],
        is_clock_right: Callable[[], bool],
        settings: BeatSettings,
    ) -> None:
        self._claims = claims
        self._clock = claims.redlock.clock
        self._publish_message = publish
        self._is_clock_right = is_clock_right
        self._settings = settings
        self.busy_since = math.inf
        self._ticks: list[Tick] = []
        self._missed: deque[Tick] = deque(maxlen=_MOST_NOTED)
        self._blocked_until = self._failed_at = self._note_at = -math.inf
        self._unclaimed_logs, self._failed_logs, self._missed_logs = (
            defaultdict[str, ThrottledLog](partial(ThrottledLog, self._clock.now, _QUIET_S))
            for _ in range(3)
        )

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, ticks: Iterable[Tick]) -> None:
        """Queue `ticks` for the next `process_ready`."""
        self._ticks += ticks

    def busy_s(self) -> float:
        """Return for how long this replica has been at work without a pause, in seconds.

        Ticks that became late meanwhile were not missed: there were many.
        """
        return max(0.0, self._clock.now() - self.busy_since)

    def note_missed(self, tick: Tick) -> None:
        """Note `tick` as missed on the nodes, as soon as a quorum answers.

        Of the ticks of an entry only one a minute should be noted: there may be very many.
        """
        self._missed.append(tick)

    def drop_after(self, moment: Moment) -> None:
        """Drop the ticks of slots after `moment`, queued by a clock that was ahead."""
        self._ticks = [tick for tick in self._ticks if tick.slot <= moment]

    def is_waiting_for(self, entry: str) -> bool:
        """Return whether a tick of the entry named `entry` is queued."""
        return any(tick.entry.name == entry for tick in self._ticks)

    def until_next(self) -> float:
        """Return the seconds until a tick is ready; infinity when the queue is empty."""
        at = min((tick.at for tick in self._ticks), default=math.inf)
        return max(at, self._blocked_until) - self._clock.now()

    def is_paused(self) -> bool:
        """Return whether no tick can be published, as the last try has shown."""
        return bool(self._blocked_by) and self._clock.now() - self._failed_at < _PAUSE_S

    def process_ready(self) -> None:
        """Process every ready tick; a tick that fails raises nothing and is tried again.

        After a few seconds the rest is left to the next call.
        """
        self._process_ready()
        self._note_missed()

    def _note_missed(self) -> None:
        if self._clock.now() < self._note_at:
            return
        try:
            while self._missed:
                self._claims.note_missed(self._missed[0])
                self._missed.popleft()
        except RedlockError:
            self._note_at = self._clock.now() + _NOTE_AGAIN_S

    def _process_ready(self) -> None:
        now = self._clock.now()
        if now < self._blocked_until:
            return
        self._ticks.sort(key=lambda tick: tick.slot)
        for tick in [tick for tick in self._ticks if tick.at <= now]:
            with signals_deferred():
                outcome = self._process(tick)
            if outcome is Outcome.BLOCKED:
                # The other ticks would fail alike, or be published out of order.
                self._blocked_until = self._clock.now() + _AGAIN_S
                return
            if outcome is Outcome.DONE:
                self._ticks.remove(tick)
            if self._clock.now() - now > _LONGEST_WORK_S:
                return

    # ---- one tick

    def _process(self, tick: Tick) -> Outcome:
        if not self._is_clock_right():
            return self._hold_up("clock off")
        if self._is_too_late(tick):
            return Outcome.DONE
        claim = None
        try:
            claim = self._claims.acquire(tick)
        except LockHeld as held:
            if self._blocked_by == "no quorum":
                # An answer from the quorum; the broker may still be unreachable.
                self._resume()
            if held.remaining > CLAIM_S:
                # Marked published.
                announce(tick, "elsewhere")
                return Outcome.DONE
            # The claimant may have died before publishing.
            return self._postpone(tick, held.remaining + random.uniform(0.1, 0.3))
        except RedlockError as error:
            if not self._settings.publishes_without_quorum:
                return self._pause("no quorum", tick, error)
            logger.log(
                self._unclaimed_logs[tick.entry.name].occurred(logging.ERROR),
                "tick published unclaimed entry=%s slot=%s error=%s",
                tick.entry.name, tick.time, error,
            )  # fmt: skip
        return self._publish(tick, claim)

    def _publish(self, tick: Tick, claim: Lease | None) -> Outcome:
        # This process may have been paused since, and another replica may hold the claim by now.
        if claim and claim.remaining() <= 0:
            return self._postpone(tick, 0.0)
        if self._is_too_late(tick):
            self._release(tick, claim)
            return Outcome.DONE
        began = self._clock.now()
        try:
            self._publish_message(tick)
        except Exception as error:  # noqa: BLE001  # whatever the error, the tick is tried again
            self._release(tick, claim)
            if _is_brokers(error):
                return self._pause("no broker", tick, error)
            logger.log(
                self._failed_logs[tick.entry.name].occurred(logging.ERROR),
                "tick not published entry=%s slot=%s error=%s", tick.entry.name, tick.time, error,
            )  # fmt: skip
            return self._postpone(tick, _AGAIN_S)
        outcome = "published"
        if claim and claim.deadline <= self._clock.now():
            outcome = self._claim_again(tick, claim, self._clock.now() - began)
        else:
            self._mark_published(tick, claim)
        logger.info(
            "tick published entry=%s slot=%s task_id=%s replica=%s pid=%d",
            tick.entry.name, tick.time, tick.task_id, _REPLICA, os.getpid(),
        )  # fmt: skip
        announce(tick, outcome)
        self._resume()
        return Outcome.DONE

    def _claim_again(self, tick: Tick, ended: Lease, took: float) -> str:
        """Claim a published tick again whose claim has ended meanwhile; return the outcome.

        Args:
            tick: The tick.
            ended: Its claim.
            took: How long it took to publish, seconds: the broker has stalled.
        """
        outcome, meanwhile = "published", "nobody"
        try:
            claim = self._claims.acquire(tick, after=ended)
        except LockHeld as held:
            outcome, meanwhile = "twice", str(held.hostname)
        except RedlockError:
            meanwhile = "unknown"
        else:
            self._mark_published(tick, claim)
        logger.warning(
            "publishing took longer than the claim entry=%s slot=%s took_s=%.1f claim_s=%.0f "
            "claimed_meanwhile_by=%s",
            tick.entry.name, tick.time, took, CLAIM_S, meanwhile,
        )  # fmt: skip
        return outcome

    def _mark_published(self, tick: Tick, claim: Lease | None) -> None:
        """Mark the claim published, so that no other replica publishes the tick again."""
        if claim is None:
            return
        try:
            self._claims.mark_published(claim, tick)
        except RedlockError as error:
            # The lock's keeper goes on trying.
            logger.warning(
                "claim not marked published, tick may be published again entry=%s slot=%s error=%s",
                tick.entry.name, tick.time, error,
            )  # fmt: skip

    def _release(self, tick: Tick, claim: Lease | None) -> None:
        if claim is None:
            return
        try:
            self._claims.release(claim)
        except RedlockError as error:
            logger.warning(
                "claim not released, tick delayed entry=%s slot=%s error=%s",
                tick.entry.name, tick.time, error,
            )  # fmt: skip

    def _is_too_late(self, tick: Tick) -> bool:
        late = self._clock.wall_us() / 1e6 - tick.slot.timestamp()
        longest = tick.grace
        if tick.at:  # queued in time
            longest += CLAIM_S + _AGAIN_S
        # It must not last beyond the next tick of the entry: other replicas' marks end some time
        # after that.
        longest += min(self.busy_s(), tick.until_next)
        if late <= longest:
            return False
        level = self._missed_logs[tick.entry.name].occurred(logging.ERROR)
        if level > logging.DEBUG:
            self.note_missed(tick)
        logger.log(
            level, "tick missed entry=%s slot=%s late_s=%.1f", tick.entry.name, tick.time, late
        )
        announce(tick, "missed")
        return True

    def _postpone(self, tick: Tick, seconds: float) -> Outcome:
        tick.at = self._clock.now() + seconds
        return Outcome.LATER

    # ---- what pauses all ticks

    def _pause(self, why: str, tick: Tick, error: Exception) -> Outcome:
        self._failed_at = self._clock.now()
        if self._blocked_by != why:
            self._blocked_by = why
            logger.error(
                "tick publishing paused reason=%s entry=%s slot=%s error=%s",
                why, tick.entry.name, tick.time, error,
            )  # fmt: skip
        return self._hold_up(why)

    def _hold_up(self, why: str) -> Outcome:
        # Not this one alone: all the others would fail alike.
        for tick in self._ticks:
            tick.held_up_by = why
        return Outcome.BLOCKED

    def _resume(self) -> None:
        if self._blocked_by:
            logger.warning("tick publishing resumed after=%s count=%d", self._blocked_by, len(self))
            self._blocked_by = ""


def announce(tick: Tick, outcome: str) -> None:
    """Send to signal receivers what became of a tick at this replica."""
    # Without a sender: a sender must be hashable, and entries are not.
    tick_processed.send(sender=None, entry=tick.entry, slot=tick.time, outcome=outcome)


def _is_brokers(error: BaseException | None) -> bool:
    """Return whether the connection to the broker failed."""
    while error is not None and not isinstance(error, OperationalError):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGTERM and SIGINT until the end of the block.

    A process that ended between claim and mark would leave a tick published late, or twice.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are handled in the main thread only
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for came_number in came:
            signal.raise_signal(came_number)
