"""The ticks that one replica has still to see to, in the order of their slots."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum

from kombu.exceptions import OperationalError

from .redlock import Lease
from .redlock.errors import LockHeld, RedlockError
from .settings import BeatSettings
from .ticks import CLAIM_S, Claims, Tick

logger = logging.getLogger(__name__)
_AGAIN_S = 1.0
_QUIET_S = 60.0
_LONGEST_WORK_S = 5.0
_TRIES_TO_KEEP = 3
_REPLICA = socket.gethostname()


class Outcome(Enum):
    """What became of a tick at this replica."""

    DONE = "done"
    LATER = "later"
    BLOCKED = "blocked"


class TickQueue:
    """Claims each tick, publishes it and keeps the claim, or leaves it to whoever has it.

    Args:
        claims: The claims of this replica.
        publish: Publishes the message of a tick.
        is_clock_right: Tells whether the wall clock may be gone by.
        settings: Those of beat.
    """

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
        self._ticks: list[Tick] = []
        self._blocked_by: str | None = None
        self._blocked_until = float("-inf")
        self._loud_at: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._ticks)

    def add(self, ticks: Iterable[Tick]) -> None:
        """Have `ticks` seen to by the next `work`."""
        self._ticks += ticks

    def is_waiting_for(self, entry: str) -> bool:
        """Tell whether a tick of the entry of that name is here."""
        return any(tick.entry.name == entry for tick in self._ticks)

    def until_next(self) -> float:
        """Return in how many seconds there will be work; infinity without any."""
        at = min((tick.at for tick in self._ticks), default=float("inf"))
        return max(at, self._blocked_until) - self._clock.now()

    def work(self) -> None:
        """See to the ticks that can be seen to now; never raises for one that can't.

        Those for which a few seconds are not enough are left to the next call.
        """
        now = self._clock.now()
        if now < self._blocked_until:
            return
        self._ticks.sort(key=lambda tick: tick.slot)
        for tick in [tick for tick in self._ticks if tick.at <= now]:
            with undisturbed():
                outcome = self._take(tick)
            if outcome is Outcome.BLOCKED:
                # The others would meet the same, and be out of order if they did not.
                self._blocked_until = self._clock.now() + _AGAIN_S
                return
            if outcome is Outcome.DONE:
                self._ticks.remove(tick)
            if self._clock.now() - now > _LONGEST_WORK_S:
                return

    # ---- one tick

    def _take(self, tick: Tick) -> Outcome:
        if not self._is_clock_right():
            return Outcome.BLOCKED
        if self._is_too_late(tick):
            return Outcome.DONE
        claim = None
        try:
            claim = self._claims.take(tick)
        except LockHeld as held:
            if self._blocked_by == "no quorum":
                # It says nothing of the broker.
                self._go_on()
            if held.remaining > CLAIM_S:
                # Kept, so it was published.
                return Outcome.DONE
            # Its holder may have died in between.
            return self._put_off(tick, max(0.1, held.remaining) + random.uniform(0.0, 0.2))
        except RedlockError as error:
            if not self._settings.publishes_without_quorum:
                return self._block("no quorum", tick, error)
            logger.log(
                self._level("unclaimed", tick),
                "tick published unclaimed entry=%s slot=%s error=%s",
                tick.entry.name, tick.time, error,
            )  # fmt: skip
        return self._publish(tick, claim)

    def _publish(self, tick: Tick, claim: Lease | None) -> Outcome:
        # This process may have been stopped in between, and another replica have the tick by now.
        if claim and claim.remaining() <= 0:
            return self._put_off(tick, 0.0)
        if self._is_too_late(tick):
            self._give_back(tick, claim)
            return Outcome.DONE
        try:
            self._publish_message(tick)
        except Exception as error:  # noqa: BLE001  # whatever it is, the tick is made up for
            self._give_back(tick, claim)
            if _is_brokers(error):
                return self._block("no broker", tick, error)
            logger.log(
                self._level("not published", tick),
                "tick not published entry=%s slot=%s error=%s", tick.entry.name, tick.time, error,
            )  # fmt: skip
            return self._put_off(tick, _AGAIN_S)
        self._keep(tick, claim)
        logger.info(
            "tick published entry=%s slot=%s task_id=%s replica=%s pid=%d",
            tick.entry.name, tick.time, tick.task_id, _REPLICA, os.getpid(),
        )  # fmt: skip
        self._go_on()
        return Outcome.DONE

    def _keep(self, tick: Tick, claim: Lease | None) -> None:
        """Keep the claim; without that another replica would publish the tick again."""
        if claim is None:
            return
        problem: object = "it had ended"
        for _ in range(_TRIES_TO_KEEP):
            if claim.deadline <= self._clock.now():
                break
            try:
                self._claims.keep(claim)
            except RedlockError as error:
                problem = error
            else:
                return
        logger.warning(
            "claim not kept entry=%s slot=%s error=%s", tick.entry.name, tick.time, problem
        )

    def _give_back(self, tick: Tick, claim: Lease | None) -> None:
        if claim is None:
            return
        try:
            self._claims.give_back(claim)
        except RedlockError as error:
            logger.warning(
                "claim not given back entry=%s slot=%s error=%s", tick.entry.name, tick.time, error
            )

    def _is_too_late(self, tick: Tick) -> bool:
        late = self._clock.wall_us() / 1e6 - tick.slot.timestamp()
        longest = self._settings.misfire_grace_time
        if tick.at:  # it was here in time
            longest += CLAIM_S + _AGAIN_S
        if late <= longest:
            return False
        logger.log(
            self._level("missed", tick),
            "tick missed entry=%s slot=%s late_s=%.1f", tick.entry.name, tick.time, late,
        )  # fmt: skip
        return True

    def _put_off(self, tick: Tick, seconds: float) -> Outcome:
        tick.at = self._clock.now() + seconds
        return Outcome.LATER

    # ---- what keeps all of them waiting

    def _block(self, why: str, tick: Tick, error: Exception) -> Outcome:
        if self._blocked_by != why:
            self._blocked_by = why
            logger.error(
                "ticks wait why=%s entry=%s slot=%s error=%s",
                why, tick.entry.name, tick.time, error,
            )  # fmt: skip
        return Outcome.BLOCKED

    def _go_on(self) -> None:
        if self._blocked_by:
            logger.warning("ticks go on waited_for=%s count=%d", self._blocked_by, len(self))
            self._blocked_by = None

    def _level(self, event: str, tick: Tick) -> int:
        """Return ERROR once, then DEBUG for a while: what goes on must not flood the log."""
        now = self._clock.now()
        if now < self._loud_at.get((event, tick.entry.name), now):
            return logging.DEBUG
        self._loud_at[event, tick.entry.name] = now + _QUIET_S
        return logging.ERROR


def _is_brokers(error: BaseException | None) -> bool:
    """Tell whether it was the connection to the broker that failed."""
    while error is not None and not isinstance(error, OperationalError):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put off what asks this process to end until the end of the block.

    Between its claim and its end a tick would be published late, or twice.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no signal is handled here
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
