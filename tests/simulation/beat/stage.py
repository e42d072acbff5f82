"""Two replicas of beat in virtual time, what happens to them, and what was in force meanwhile.

Everything happens between two seconds; an entry due each second makes replicas look that often.
Their clocks may differ all the time: what was in force when is known the less exactly by that much.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import celery._state
import pytest
from celery import Celery
from celery.beat import Scheduler
from kombu.exceptions import OperationalError

from celery_redlock.beat import claiming
from celery_redlock.beat.scheduler import scheduler_on
from celery_redlock.beat.slots import EPOCH, Moment
from tests.support.fakes.celery_ticks import Since57, Until56
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_redlock import FakeNodes, FakeRedlock, WallClock
from tests.support.judges.slots_in_force import Between, Judgement, Slot, Span, judge

START = 300 * 3600.0 + 1200.5
HEART = "heart"
NAMES = ("a", "b", "c", "d")
EVERY = (1, 2, 3, 5, 60)
"""Seconds."""
RESTARTS = ("end", "kill", "kill_all")
OUTAGES = ("stop", "stop_all", "broker", "quorum", "clock_of_one", "clock_of_all")
Clocks = tuple[float, float]
"""By how much each replica's clock is ahead of the nodes' all the time, seconds."""
RIGHT: Clocks = (0.0, 0.0)
CLAIM_IS_OVER_S = 13
FAR_S = 600.0
"""More than the grace time."""
SKEW_S = 1.0
"""By how much a clock may differ from the nodes'."""
LONGEST_S = 60.0
"""By how much one differs at most."""
_MOST_IN_A_ROW = 2000
_TICKS: tuple[type[Scheduler] | None, ...] = (None, Until56, Since57)
"""How Celery goes through its heap; None: as the version that is installed."""
_state: Any = celery._state


class Died(BaseException):
    """The end of a replica that has claimed a tick and not yet published it."""


class NoFile:
    """The liveness file of a replica that nobody asks."""

    def touch(self) -> None:
        """Do nothing."""


class Replica:
    """One replica; a new one takes its place when it is started again.

    Attributes:
        due_at: When it wants to tick, seconds on the boot-time clock.
        looked_at: When it looked last at its entries, by the clock of the installation.
        ticked_at: When it, or the one before it, published last what was due by then, likewise.
        is_up: Whether its process lives.
        is_stopped: Whether its process stands still.

    Args:
        stage: What it runs on.
        clock: Its host's.
        base: The scheduler it is built on.
        conf: Its app's configuration.
        file: Where it keeps its schedule, if it does.
    """

    def __init__(
        self,
        stage: Stage,
        clock: WallClock,
        base: type[Scheduler],
        conf: dict[str, Any],
        file: str,
    ) -> None:
        self.redlock = FakeRedlock(stage.nodes, clock)
        self.due_at = stage.clock.now()
        self.looked_at = stage.now()
        self.ticked_at = START
        self.is_up, self.is_stopped = True, False
        self._stage = stage
        self._app = Celery("app", broker="memory://", set_as_current=False)
        # Without results no backend is asked whether it cleans up by itself.
        self._app.conf.update(redlock_nodes=["redis://a"], result_expires=None, **conf)
        self._app.now = self._now  # type: ignore[method-assign]
        vars(self._app)["send_task"] = self._send
        stage.redlocks[self._app] = self.redlock
        new: Callable[..., Any] = (
            base if stage.is_plain else lambda *a, **kw: scheduler_on(base, *a, **kw)
        )
        self._be_current()
        self.scheduler: Any = new(self._app, schedule_filename=file)
        vars(self.scheduler).update(producer=None, _liveness=NoFile())

    def tick(self) -> float:
        """Tick; return when to come again, seconds."""
        self._be_current()
        pause: float = self.scheduler.tick()
        if self.is_right:
            self.looked_at = self._stage.now()
            if pause > 0:
                self.ticked_at = self.looked_at
        return pause

    @property
    def is_right(self) -> bool:
        """Whether its clock is as right as it must be; else it neither looks nor publishes."""
        return abs(self.redlock.clock.ahead - self._stage.nodes.ahead) <= SKEW_S

    def close(self) -> None:
        """End it as SIGTERM does."""
        self._be_current()
        self.scheduler.close()

    def _be_current(self) -> None:
        # What is read from a file or a database has the current app.
        _state._tls.current_app = self._app

    def _now(self) -> Moment:
        return EPOCH + dt.timedelta(microseconds=self.redlock.clock.wall_us())

    def _send(self, name: str, args: Any, kwargs: Any, **options: Any) -> None:
        if not self._stage.has_broker:
            raise OperationalError("refused")
        if self._stage.next_one_dies:
            self._stage.next_one_dies = False
            raise Died
        tick = (options.get("headers") or {}).get("redlock_tick")
        self._stage.publish(args[0], tick)


class Stage:
    """Two replicas, or one of Celery's own, and what happens to them.

    Args:
        seed: Chooses everything.
        patch: Undone with the stage.
        is_plain: Whether it is Celery's own beat, of which there must be only one.
        ahead: The replicas' clocks.
    """

    base: type[Scheduler]
    """What the replicas are built on."""
    changes: ClassVar[tuple[str, ...]]
    """Events that change entries."""
    meanwhile: ClassVar[tuple[str, ...]]
    """Events that may come while a replica, the broker or the nodes are away."""
    common = (*RESTARTS, "die", *OUTAGES)

    def __init__(
        self,
        seed: int,
        patch: pytest.MonkeyPatch,
        *,
        is_plain: bool = False,
        ahead: Clocks = RIGHT,
    ) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock(START)
        self.nodes = FakeNodes(self.clock)
        self.redlocks: dict[Celery, Any] = {}
        patch.setattr(claiming, "redlock_of", self.redlocks.__getitem__)
        patch.setattr(_state._tls, "current_app", _state._tls.current_app)
        self._patch = patch
        self.is_plain = is_plain
        self.has_broker = True
        self.next_one_dies = False
        self._ahead = ahead
        # Those far off publish nothing.
        near = [by for by in ahead if abs(by) <= SKEW_S]
        self._behind_s, self._ahead_s = min([0.0, *near]), max([0.0, *near])
        self.spans: list[Span] = []
        self.published: list[Slot] = []
        self.told: list[str] = []
        self.events: Counter[str] = Counter()
        self._tick_of = _TICKS[seed % len(_TICKS)]
        self._early: list[Slot] = []
        self._shown_until = 0.0
        self._excused: list[Between] = []
        self.replicas: list[Replica] = []
        self.set_up()
        for number in range(1 if is_plain else len(ahead)):
            self.start(number)
        self.pass_time(2)

    # ---- what a kind of installation defines

    def set_up(self) -> None:
        """Make what is there before the first replica."""
        raise NotImplementedError

    def start(self, number: int) -> None:
        """Start a replica, in the place of the one there was."""
        raise NotImplementedError

    # ---- time

    def now(self) -> float:
        """Return the time by the installation's clocks, seconds since the epoch."""
        return self.clock.now() + self.nodes.ahead

    def pass_time(self, seconds: int) -> None:
        """Let time pass, and each replica tick when it wants to."""
        end = self.clock.now() + seconds
        in_a_row = 0
        while running := [one for one in self.replicas if one.is_up and not one.is_stopped]:
            replica = min(running, key=lambda one: one.due_at)
            if replica.due_at > end:
                break
            in_a_row = 0 if replica.due_at > self.clock.now() else in_a_row + 1
            assert in_a_row < _MOST_IN_A_ROW, "beat spins"
            self.clock.move(max(0.0, replica.due_at - self.clock.now()))
            try:
                pause = replica.tick()
            except Died:
                replica.is_up = False
                continue
            # A tick takes time. Celery's own wants to come 10 ms too early, and again until then.
            replica.due_at = self.clock.now() + max(pause, 0.01 if self.is_plain else 0.0001)
        self.clock.move(max(0.0, end - self.clock.now()))

    def pass_some(self, most: int) -> None:
        """Let some seconds pass, or none."""
        self.pass_time(self.random.randint(0, most))

    # ---- what happens

    def play(self, count: int) -> Judgement:
        """Let so many events happen, and return what was wrong with what was published."""
        for _ in range(count):
            self.happen((*self.changes * 2, *self.common))
            self.pass_some(6)
        self.pass_time(CLAIM_IS_OVER_S)
        end = self.now() + self._behind_s
        judgement = judge(self.spans, self.published, START, end, self._excused)
        return replace(judgement, old=judgement.old + self._early)

    def happen(self, events: tuple[str, ...]) -> None:
        """Let one of these events happen."""
        event = self.random.choice(events)
        self.events[event] += 1
        self.tell(event)
        getattr(self, event)()

    def tell(self, what: str) -> None:
        """Note what happens, for who reads why a test failed."""
        self.told.append(f"{self.now() - START:7.1f} {what}")

    def publish(self, name: str, tick: str | None) -> None:
        """Note that a tick was published; Celery's own beat does not say of which slot."""
        if tick:
            moment = Moment.fromisoformat(tick.replace("Z", "+00:00"))
            self.published.append((name, round(moment.timestamp(), 3)))
            if moment.timestamp() > self.now() + SKEW_S:
                self._early.append(self.published[-1])
            return
        now = self.now()
        present = [
            slot
            for span in self.spans
            if span.name == name and span.began.earliest <= now < span.ended.latest
            for slot in span.slots(now - (span.every or 60), now)
        ]
        self.published.append(present[-1] if present else (name, now))

    # ---- entries

    def begin(self, name: str, began: Between, **due: Any) -> Span:
        """Note that an entry has come into force: by each replica's clock, so never quite sure."""
        self.spans.append(Span(name, self._by_all_clocks(began), **due))
        self.tell(f"begin {name} {due}")
        return self.spans[-1]

    def end_span(self, span: Span, earliest: float, latest: float) -> None:
        """Note that an entry is not in force any more."""
        # What was published while all clocks were ahead was due then.
        span.ended = self._by_all_clocks(Between(earliest, max(latest, self._shown_until)))
        self.tell(f"end {span.name}")

    def _by_all_clocks(self, moment: Between) -> Between:
        return Between(moment.earliest + self._behind_s, moment.latest + self._ahead_s)

    # ---- replicas

    def new_replica(self, number: int, **conf: Any) -> None:
        """Put a new replica in the place of the one there was."""
        own = self._tick_of
        base = self.base if own is None else type("Base", (own, self.base), {})
        clock = WallClock(self.clock, self.nodes.ahead + self._ahead[number])
        replica = Replica(self, clock, base, conf, f"schedule-{number}")
        for before in self.replicas[number : number + 1]:
            replica.ticked_at = before.ticked_at
        self.replicas[number : number + 1] = [replica]

    def end_replica(self, number: int, *, is_killed: bool) -> None:
        """End a replica: by SIGTERM, or by SIGKILL."""
        replica = self.replicas[number]
        if replica.is_up and not replica.is_stopped and not is_killed:
            replica.close()
        replica.is_up = False

    def _restart(self, numbers: list[int], *, is_killed: bool) -> None:
        for number in numbers:
            self.end_replica(number, is_killed=is_killed)
        self.pass_some(8)
        for number in numbers:
            self.start(number)

    def publishes(self, number: int) -> bool:
        """Return whether the clock of a replica's host is right enough, all in all."""
        return abs(self._ahead[number]) <= SKEW_S

    def _one(self) -> int:
        return self.random.randrange(len(self.replicas))

    def end(self) -> None:
        """End one replica, and start it again."""
        self._restart([self._one()], is_killed=False)

    def kill(self) -> None:
        """Kill one replica, and start it again."""
        self._restart([self._one()], is_killed=True)

    def kill_all(self) -> None:
        """Kill both replicas, and start them again."""
        self._restart(list(range(len(self.replicas))), is_killed=True)

    def die(self) -> None:
        """Let the replica die that claims the next tick, before it has published it."""
        self.next_one_dies = True
        self.pass_time(CLAIM_IS_OVER_S)
        self.next_one_dies = False
        for number, replica in enumerate(self.replicas):
            if not replica.is_up:
                self.start(number)
        # It may have died late, and its tick waits until its claim ends.
        self.pass_time(CLAIM_IS_OVER_S)

    # ---- outages

    def stop(self) -> None:
        """Let one replica stand still."""
        self._stop([self.replicas[self._one()]])

    def stop_all(self) -> None:
        """Let both replicas stand still."""
        self._stop(self.replicas)

    def _stop(self, replicas: list[Replica]) -> None:
        for replica in replicas:
            replica.is_stopped = True
        self._meanwhile()
        for replica in replicas:
            replica.is_stopped = False
            replica.due_at = max(replica.due_at, self.clock.now())
        self.pass_time(1)

    def _meanwhile(self, events: tuple[str, ...] = ()) -> None:
        self.pass_some(8)
        if self.random.random() < 0.5:
            self.happen(events or self.meanwhile)
        self.pass_some(8)

    def broker(self) -> None:
        """Let the broker be away."""
        self.has_broker = False
        self._meanwhile()
        self.has_broker = True
        self.pass_time(3)

    def quorum(self) -> None:
        """Let the nodes be away."""
        self.nodes.is_up = False
        self._meanwhile()
        self.nodes.is_up = True
        self.pass_time(3)

    def clock_of_one(self) -> None:
        """Step the clock of one replica, and put it right."""
        by = self.random.choice((-3600.0, -30.0, 30.0, 3600.0))
        number = self._one()
        wrong = self.replicas[number].redlock.clock
        wrong.ahead += by
        self._meanwhile()
        wrong.ahead = self.nodes.ahead + self._ahead[number]

    def clock_of_all(self) -> None:
        """Step all clocks, the nodes' too, and put them right."""
        by = self.random.choice((-12.0, 12.0, 30.0, FAR_S))
        seen_at = max(one.ticked_at for one in self.replicas)
        self.step_all(by)
        for span in self.spans:
            # Its slots of an earlier time come, though it was not in force then.
            earliest = min(span.began.earliest, self.now() + self._behind_s)
            if span.ended.latest > self.now() - by:
                span.began = replace(span.began, earliest=earliest)
        self._meanwhile(RESTARTS)
        self._shown_until = max(self._shown_until, self.now() + 1)
        self.step_all(-by)
        if by == FAR_S:
            # Replicas never saw these slots come, up to their first look at the right time.
            self._excused.append(self._by_all_clocks(Between(seen_at, self.now() + 1)))
        self.pass_time(1)

    def step_all(self, by: float) -> None:
        """Step all clocks, the nodes' too."""
        self.nodes.step(by)
        for replica, ahead in zip(self.replicas, self._ahead, strict=False):
            replica.redlock.clock.ahead = self.nodes.ahead + ahead
            replica.due_at = min(replica.due_at, self.clock.now() + 1)
