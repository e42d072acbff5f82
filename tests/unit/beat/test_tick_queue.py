"""What becomes of a tick, at each of several replicas."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery.beat import ScheduleEntry, SchedulingError
from kombu.exceptions import OperationalError

from celery_redlock.beat.slots import EPOCH, Moment
from celery_redlock.beat.tick_queue import TickQueue, signals_deferred
from celery_redlock.beat.ticks import MISSED, Claims, Tick
from celery_redlock.config.settings import beat_settings_from
from celery_redlock.redlock.lease import task_of
from celery_redlock.signals import tick_processed
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_redlock import FakeNodes, FakeRedlock

GRACE = 60.0
SKEW = 1.0
CLAIM_S = 10.0
"""As the documentation says: the code's own figure would agree with any mistake."""
START = 1_000_000


def slot(second: float) -> Moment:
    return Moment.fromtimestamp(START + second, EPOCH.tzinfo)


def tick(second: float = 0, entry: str = "entry") -> Tick:
    due = ScheduleEntry(entry, "task", last_run_at=EPOCH)
    return Tick(due, slot(second), "app", grace=GRACE, kept=GRACE)


class Replica:
    """A queue, and what it has published."""

    def __init__(self, redlock: FakeRedlock, **conf: Any) -> None:
        self.redlock = redlock
        self.published: list[tuple[str, float]] = []
        self.on_publish: Callable[[Tick], object] = lambda tick: None
        self.is_clock_right = True
        settings = beat_settings_from(conf)
        claims: Any = Claims(redlock, SKEW)  # type: ignore[arg-type]
        self.queue = TickQueue(claims, self._publish, lambda: self.is_clock_right, settings)

    def _publish(self, tick: Tick) -> None:
        self.on_publish(tick)
        self.published.append((tick.entry.name, tick.slot.timestamp() - START))

    def take(self, *ticks: Tick) -> None:
        self.queue.add(ticks)
        self.queue.process_ready()

    def slots(self) -> list[float]:
        return [second for _, second in self.published]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    return FakeNodes(clock)


@pytest.fixture
def one(nodes: FakeNodes) -> Replica:
    return Replica(nodes.redlock())


@pytest.fixture
def other(nodes: FakeNodes) -> Replica:
    return Replica(nodes.redlock())


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return the lines that were logged, without the name of the entry and the slot."""
    of_tick = f" entry=entry slot={tick(0).time}"
    return [(r.levelname, r.getMessage().replace(of_tick, "")) for r in caplog.records]


def die(tick: Tick) -> None:
    """Be killed: nothing of what follows in this process happens."""
    raise KeyboardInterrupt


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


# --- one of several -------------------------------------------------------------------------------


def test_one_replica_publishes_a_tick(one: Replica, other: Replica) -> None:
    one.take(tick(0))
    other.take(tick(0))
    assert (one.slots(), other.slots()) == ([0], [])
    assert not len(other.queue)


def test_each_replica_tells_what_became_of_a_tick(
    one: Replica, other: Replica, clock: FakeClock
) -> None:
    told: list[tuple[str, str]] = []

    def note(entry: ScheduleEntry, slot: str, outcome: str, **_: Any) -> None:
        assert slot == f"1970-01-12T13:46:4{outcome == 'missed':d}Z"
        told.append((str(entry.task), outcome))

    tick_processed.connect(note)
    try:
        one.take(tick(0))
        other.take(tick(0))
        clock.move(2 * GRACE)
        one.take(tick(1))
    finally:
        tick_processed.disconnect(note)
    assert told == [("task", "published"), ("task", "elsewhere"), ("task", "missed")]


def test_ticks_are_taken_in_the_order_of_their_slots(one: Replica, clock: FakeClock) -> None:
    clock.move(10)
    one.take(tick(3, "a"), tick(9, "a"), tick(1, "b"), tick(7, "c"), tick(5, "b"))
    assert one.published == [("b", 1), ("a", 3), ("b", 5), ("c", 7), ("a", 9)]


@pytest.mark.parametrize(("end", "later"), [(min, 0.1), (max, 0.3)])
def test_a_tick_is_taken_over_if_its_replica_died_unpublished(
    one: Replica,
    other: Replica,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[..., float],
    later: float,
) -> None:
    monkeypatch.setattr("random.uniform", end)
    one.on_publish = die
    with pytest.raises(KeyboardInterrupt):
        one.take(tick(0))
    other.take(tick(0))
    assert other.slots() == []
    assert other.queue.until_next() == pytest.approx(CLAIM_S + later)
    clock.move(other.queue.until_next())
    other.queue.process_ready()
    assert other.slots() == [0]


def test_while_a_tick_is_somebody_elses_the_others_go_on(one: Replica, other: Replica) -> None:
    one.on_publish = die
    with pytest.raises(KeyboardInterrupt):
        one.take(tick(-1))
    other.take(tick(-1), tick(0))
    assert other.slots() == [0]


def test_a_published_tick_is_not_looked_at_again(
    one: Replica, other: Replica, clock: FakeClock
) -> None:
    one.take(tick(0))
    for _ in range(60):
        clock.move(1)
        other.take(tick(0))
    assert other.published == []
    assert len(other.redlock.asked) == 60  # each time it was added


@pytest.mark.parametrize("ahead", [-SKEW, 0.0, SKEW])
def test_a_claim_is_kept_for_longer_than_any_replica_looks_back(
    nodes: FakeNodes, clock: FakeClock, ahead: float
) -> None:
    early = Replica(nodes.redlock(ahead=SKEW))
    clock.move(-SKEW)
    early.take(tick(0))
    assert early.slots() == [0]
    is_asked = True
    while is_asked:  # until it is too late to ask
        clock.move(0.5)
        late = Replica(nodes.redlock(ahead))
        late.take(tick(0))
        assert late.published == [], f"published again after {clock.now() - START} s"
        is_asked = tick(0).key in late.redlock.asked


@pytest.mark.parametrize(("stopped", "is_over"), [(9.5, False), (10.0, True), (15.0, True)])
def test_a_replica_stopped_until_its_claim_is_over_does_not_publish(
    one: Replica,
    other: Replica,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    stopped: float,
    is_over: bool,
) -> None:
    reserve = one.redlock.reserve

    def reserve_and_stop(*args: Any, **kwargs: Any) -> Any:
        lease = reserve(*args, **kwargs)
        clock.move(stopped)
        other.take(tick(0))
        return lease

    monkeypatch.setattr(one.redlock, "reserve", reserve_and_stop)
    one.take(tick(0))
    monkeypatch.undo()
    one.queue.process_ready()
    assert (one.slots(), other.slots()) == (([], [0]) if is_over else ([0], []))
    assert len(one.queue) == 0


def test_a_replica_stopped_before_its_claim_comes_too_late(
    one: Replica, other: Replica, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.take(tick(0))
    reserve = one.redlock.reserve

    def stop_and_reserve(*args: Any, **kwargs: Any) -> Any:
        clock.move(3600)
        return reserve(*args, **kwargs)

    monkeypatch.setattr(one.redlock, "reserve", stop_and_reserve)
    one.take(tick(0))
    assert (one.slots(), len(one.queue)) == ([], 0)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_tick_claimed_too_late_is_left_to_patient_replicas(
    one: Replica, clock: FakeClock, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, failed: int,
) -> None:  # fmt: skip
    one.redlock.releases_to_fail = failed
    reserve = one.redlock.reserve

    def reserve_slowly(*args: Any, **kwargs: Any) -> Any:
        lease = reserve(*args, **kwargs)
        clock.move(3)
        return lease

    monkeypatch.setattr(one.redlock, "reserve", reserve_slowly)
    clock.move(GRACE - 1)
    one.take(tick(0))
    assert (one.slots(), len(one.queue)) == ([], 0)
    assert (one.redlock.read_holder(tick(0).key) is None) is (failed == 0)
    assert sum("claim not released" in said for _, said in lines(caplog)) == failed


def test_beat_is_not_kept_from_ticking_by_much_work(one: Replica, clock: FakeClock) -> None:
    one.on_publish = lambda tick: clock.move(2.5)
    one.take(*[tick(n / 10) for n in range(10)])
    assert len(one.published) == 3
    assert one.queue.until_next() <= 0
    while len(one.queue):
        one.queue.process_ready()
    assert one.slots() == pytest.approx([n / 10 for n in range(10)])


# --- late -----------------------------------------------------------------------------------------


def test_a_tick_is_made_up_for_within_the_grace_and_not_later(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.move(GRACE)
    one.take(tick(0), tick(-0.1))
    assert one.slots() == [0]
    assert errors(caplog) == [
        "tick missed entry=entry slot=1970-01-12T13:46:39.900000Z late_s=60.1"
    ]


@pytest.mark.parametrize(
    ("busy", "late", "is_missed"),
    [(20, 80, False), (20, 80.1, True), (40, 90, False), (40, 90.1, True)],
)
def test_while_it_is_busy_a_replica_may_be_later_by_a_period(
    one: Replica, clock: FakeClock, busy: float, late: float, is_missed: bool
) -> None:
    clock.move(late)
    one.queue.busy_since = clock.now() - busy
    one.take(replace(tick(0), until_next=30.0))
    assert one.slots() == ([] if is_missed else [0])


def test_ticks_of_slots_to_come_can_be_dropped(one: Replica) -> None:
    one.queue.add([tick(0, "past"), tick(1, "now"), tick(2, "to come")])
    one.queue.drop_after(slot(1))
    entries = ["past", "now", "to come"]
    assert [one.queue.is_waiting_for(entry) for entry in entries] == [True, True, False]


def note_of(replica: Replica, missed: Tick) -> str | None:
    held = replica.redlock.read_holder(missed.key + MISSED)
    return task_of(held.owner) if held else None


def no_quorum(one: Replica, nodes: FakeNodes) -> None:
    nodes.is_up = False


def no_broker(one: Replica, nodes: FakeNodes) -> None:
    one.on_publish = fail(OperationalError("refused"))


def clock_off(one: Replica, nodes: FakeNodes) -> None:
    one.is_clock_right = False


def nothing_else(one: Replica, nodes: FakeNodes) -> None:
    one.on_publish = fail(ValueError("not JSON"))


@pytest.mark.parametrize(
    ("befall", "why"),
    [
        (no_quorum, "no quorum"),
        (no_broker, "no broker"),
        (clock_off, "clock off"),
        (nothing_else, "late"),
    ],
)
def test_a_note_of_a_missed_tick_tells_what_has_held_it_up(
    one: Replica,
    nodes: FakeNodes,
    clock: FakeClock,
    befall: Callable[[Replica, FakeNodes], None],
    why: str,
) -> None:
    """Also if another tick, which waited with it, is published before it."""
    patient, missed = replace(tick(0, "patient"), grace=9 * GRACE), tick(1)
    befall(one, nodes)
    one.take(patient, missed)
    clock.move(2 * GRACE)
    nodes.is_up = one.is_clock_right = True
    one.on_publish = lambda tick: None
    one.queue.process_ready()
    assert (one.slots(), note_of(one, missed)) == ([0], why)


def test_a_tick_seen_in_time_may_be_taken_over_after_the_grace(
    one: Replica, other: Replica, clock: FakeClock
) -> None:
    one.on_publish = die
    clock.move(GRACE - 1)
    with pytest.raises(KeyboardInterrupt):
        one.take(tick(0))
    other.take(tick(0))
    clock.move(CLAIM_S + 0.5)
    other.queue.process_ready()
    assert other.slots() == [0]


def test_an_entry_that_fails_to_publish_is_missed_aloud(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.move(GRACE - 1)
    one.on_publish = fail(ValueError("not JSON"))
    one.take(tick(0))
    clock.move(CLAIM_S + 3)
    one.queue.process_ready()
    assert [line.partition(" entry")[0] for line in errors(caplog)] == [
        "tick not published",
        "tick missed",
    ]


def test_what_is_missed_for_long_is_said_once_a_minute(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.move(1000)
    for second in range(90):
        one.take(tick(second))
        clock.move(1)
    assert len(errors(caplog)) == 2
    one.take(tick(0, "another"))
    assert len(errors(caplog)) == 3


# --- no quorum ------------------------------------------------------------------------------------


def test_ticks_without_a_quorum_are_published_later_in_order(
    one: Replica, other: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    """Each of them once."""
    nodes.is_up = False
    for second in range(10):
        for replica in (one, other):
            replica.take(tick(second, "a"), tick(second + 0.5, "b"))
        clock.move(1)
    assert (one.published, other.published) == ([], [])
    nodes.is_up = True
    clock.move(0.1)
    one.take(tick(10, "a"))
    expected = sorted([*range(11), *(second + 0.5 for second in range(10))])
    assert one.slots() == expected
    other.take(tick(10, "a"))
    assert other.published == []
    assert (len(one.queue), len(other.queue)) == (0, 0)


def test_without_a_quorum_the_nodes_are_asked_once_a_second(
    one: Replica, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.is_up = False
    one.take(*[tick(n / 100) for n in range(50)])
    for _ in range(100):
        one.queue.process_ready()
        clock.move(0.1)
    assert 10 <= len(one.redlock.asked) <= 11
    assert 0 < one.queue.until_next() <= 1
    [(level, line)] = lines(caplog)
    assert level == "ERROR"
    assert line.startswith("tick publishing paused reason=no quorum error=cannot lock")
    nodes.is_up = True
    clock.move(1)
    one.queue.process_ready()
    assert [r.getMessage() for r in caplog.records if "resumed" in r.getMessage()] == [
        "tick publishing resumed after=no quorum count=50"
    ]


def test_a_tick_without_a_quorum_is_missed_after_the_grace(
    one: Replica, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.is_up = False
    for second in range(0, 100, 10):
        one.take(tick(second))
        clock.move(10)
    nodes.is_up = True
    one.queue.process_ready()
    assert one.slots() == [40, 50, 60, 70, 80, 90]
    assert len(one.queue) == 0
    assert any("tick missed" in line for line in errors(caplog))


def test_ticks_may_be_published_unclaimed_by_every_replica(
    nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.is_up = False
    replicas = [Replica(nodes.redlock(), redlock_beat_on_unavailable="publish") for _ in range(2)]
    replicas[0].on_publish = fail(OperationalError("refused"))
    replicas[0].take(tick(0, "other"))
    assert len(replicas[0].queue) == 1
    replicas[0].queue.drop_after(slot(-1))
    replicas[0].on_publish = lambda tick: None
    clock.move(1)
    caplog.clear()
    for second in range(5):
        for replica in replicas:
            replica.take(tick(second))
        clock.move(1)
    assert [replica.slots() for replica in replicas] == [[0, 1, 2, 3, 4]] * 2
    said = [line for level, line in lines(caplog) if level == "ERROR"]
    assert len(said) == 2
    assert all(line.startswith("tick published unclaimed error=cannot lock") for line in said)


@pytest.mark.parametrize("is_of_quorum", [True, False])
def test_an_answer_of_the_quorum_ends_a_pause_that_it_caused(
    one: Replica,
    other: Replica,
    nodes: FakeNodes,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    is_of_quorum: bool,
) -> None:
    (no_quorum if is_of_quorum else no_broker)(one, nodes)
    one.take(tick(0))
    assert one.queue.is_paused()
    nodes.is_up = True
    other.take(tick(0))
    clock.move(1)
    one.queue.process_ready()
    assert (len(one.queue), one.queue.is_paused()) == (0, not is_of_quorum)
    resumed = ("WARNING", "tick publishing resumed after=no quorum count=1")
    assert (resumed in lines(caplog)) == is_of_quorum


def test_a_failure_is_no_pause_for_longer_than_30_seconds(
    one: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    assert not one.queue.is_paused()
    no_quorum(one, nodes)
    one.take(tick(0))
    clock.move(29)
    assert one.queue.is_paused()
    clock.move(1)
    assert not one.queue.is_paused()


# --- publishing fails -----------------------------------------------------------------------------


def fail(error: Exception, *, is_cause: bool = False) -> Callable[[Tick], object]:
    """Return what fails as Celery does, or with the error as the cause."""

    def publish(tick: Tick) -> None:
        failure = SchedulingError("Couldn't apply scheduled task")
        if is_cause:
            raise failure from error
        failure.__context__ = error
        raise failure

    return publish


def test_what_one_replica_cannot_publish_another_can_at_once(
    one: Replica, other: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    one.on_publish = fail(ValueError("no such queue"))
    one.take(tick(0))
    assert lines(caplog) == [("ERROR", "tick not published error=Couldn't apply scheduled task")]
    other.take(tick(0))
    assert other.slots() == [0]
    one.on_publish = lambda tick: None
    clock.move(1)
    one.queue.process_ready()
    assert (one.slots(), len(one.queue)) == ([], 0)


def test_what_could_not_be_published_is_tried_again(one: Replica, clock: FakeClock) -> None:
    one.on_publish = fail(ValueError("no such queue"))
    one.take(tick(0))
    one.on_publish = lambda tick: None
    one.queue.process_ready()
    assert one.slots() == []
    clock.move(1)
    one.queue.process_ready()
    assert one.slots() == [0]


def test_an_entry_that_fails_to_publish_delays_no_other(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def publish(tick: Tick) -> None:
        if tick.entry.name == "broken":
            raise SchedulingError from TypeError("not JSON")

    one.on_publish = publish
    for second in range(30):
        one.take(tick(second, "broken"), tick(second + 0.5, "fine"))
        clock.move(1)
    assert one.slots() == [second + 0.5 for second in range(30)]
    assert len(errors(caplog)) == 1


@pytest.mark.parametrize("is_cause", [True, False])
def test_ticks_without_a_broker_are_published_later_in_order(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture, is_cause: bool
) -> None:
    one.on_publish = fail(OperationalError("connection refused"), is_cause=is_cause)
    for second in range(5):
        one.take(tick(second, "a"), tick(second + 0.5, "b"))
        clock.move(1)
    assert len(one.redlock.asked) == 5  # of ten ticks: one try a second
    [line] = errors(caplog)
    assert line.startswith("tick publishing paused reason=no broker entry=a slot=1970-01-12T13:46")
    assert line.endswith(" error=Couldn't apply scheduled task")
    one.on_publish = lambda tick: None
    one.queue.process_ready()
    assert one.slots() == [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5]


# --- the claim that is kept -----------------------------------------------------------------------


def test_a_published_tick_is_logged(one: Replica, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    one.take(tick(0))
    told = f"task_id={tick(0).task_id} replica={socket.gethostname()} pid={os.getpid()}"
    assert lines(caplog) == [("INFO", f"tick published {told}")]


@pytest.mark.parametrize(
    ("on_publish", "event"),
    [
        (lambda _: None, "claim not marked published, tick may be published again"),
        (fail(ValueError("not JSON")), "claim not released, tick delayed"),
    ],
)
def test_a_claim_that_cannot_be_ended_is_said(
    one: Replica,
    caplog: pytest.LogCaptureFixture,
    on_publish: Callable[[Tick], object],
    event: str,
) -> None:
    """The lock's keeper goes on trying."""
    one.redlock.releases_to_fail = 1
    one.on_publish = on_publish
    one.take(tick(0))
    [said] = [said for level, said in lines(caplog) if level == "WARNING"]
    assert said.startswith(f"{event} error=cannot release")


def test_a_claim_that_ended_while_it_was_published_is_said(
    one: Replica, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    one.on_publish = lambda tick: clock.move(CLAIM_S + 2.5)
    one.take(tick(0))
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        (
            "publishing took longer than the claim entry=entry slot=1970-01-12T13:46:40Z "
            "took_s=12.5 claim_s=10 claimed_meanwhile_by=nobody"
        ),
    )


def outcomes_of(act: Callable[[], object]) -> list[str]:
    """Return the outcomes that are told meanwhile."""
    told: list[str] = []

    def note(outcome: str, **_: Any) -> None:
        told.append(outcome)

    tick_processed.connect(note)
    try:
        act()
    finally:
        tick_processed.disconnect(note)
    return told


def test_a_tick_that_nobody_claimed_meanwhile_is_marked_published(
    one: Replica, other: Replica, clock: FakeClock
) -> None:
    one.on_publish = lambda tick: clock.move(CLAIM_S + 1)
    assert outcomes_of(lambda: one.take(tick(0))) == ["published"]
    clock.move(CLAIM_S + 1)
    other.take(tick(0))
    assert (one.slots(), other.slots()) == ([0], [])


@pytest.mark.parametrize("is_published", [True, False])
def test_a_tick_that_another_replica_claimed_meanwhile_is_published_twice(
    one: Replica,
    other: Replica,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    is_published: bool,
) -> None:
    def stall(_: Tick) -> None:
        clock.move(CLAIM_S + 0.5)
        other.on_publish = (lambda tick: None) if is_published else die
        with contextlib.suppress(KeyboardInterrupt):
            other.take(tick(0))

    one.on_publish = stall
    assert outcomes_of(lambda: one.take(tick(0)))[-1] == "twice"
    assert len(one.queue) == 0
    [record] = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.getMessage().endswith(f"claimed_meanwhile_by={socket.gethostname()}")


def test_without_a_quorum_nobody_knows_who_claimed_meanwhile(
    one: Replica, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def stall(_: Tick) -> None:
        clock.move(CLAIM_S + 0.5)
        nodes.is_up = False

    one.on_publish = stall
    assert outcomes_of(lambda: one.take(tick(0))) == ["published"]
    assert "claimed_meanwhile_by=unknown" in caplog.text


def test_what_is_left_of_its_own_claim_is_nobody_elses(
    one: Replica, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def stall(tick: Tick) -> None:
        clock.move(CLAIM_S)
        owner, _ = nodes.held[tick.key]
        nodes.held[tick.key] = owner, clock.now() + 0.02  # nodes wait for a moment longer

    one.on_publish = stall
    assert outcomes_of(lambda: one.take(tick(0))) == ["published"]
    assert "claimed_meanwhile_by=nobody" in caplog.text


# --- what is noted on the nodes -------------------------------------------------------------------


def noted(nodes: FakeNodes) -> list[str]:
    """Return the ends of the keys under which missed ticks are noted."""
    return [key.partition("app:")[2] for key in nodes.held if key.endswith(":missed")]


def test_a_missed_tick_is_noted_for_a_day_beside_its_claim(
    one: Replica, other: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    clock.move(GRACE + 1)
    one.take(tick(0))
    other.take(tick(0))
    assert noted(nodes) == ["entry:1970-01-12T13:46:40Z:missed"]
    [(_, ends)] = nodes.held.values()
    assert ends == clock.now() + 86_400
    assert tick(0).key not in nodes.held


def test_of_an_entrys_missed_ticks_one_a_minute_is_noted(
    one: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    for second in range(90):
        clock.move(GRACE + 1 if second == 0 else 1)
        one.take(tick(second), tick(second, "other"))
    assert len(noted(nodes)) == 4


def test_what_was_missed_without_a_quorum_is_noted_when_it_is_back(
    one: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    nodes.is_up = False
    one.take(tick(0))
    for _ in range(30):
        clock.move(GRACE / 20)
        one.queue.process_ready()
    assert (noted(nodes), len(one.queue)) == ([], 0)
    assert sum(key.endswith(MISSED) for key in one.redlock.asked) == 5  # in 27 s
    nodes.is_up = True
    clock.move(5)
    one.queue.process_ready()
    assert noted(nodes) == ["entry:1970-01-12T13:46:40Z:missed"]


def test_an_outage_of_days_leaves_few_notes(
    one: Replica, nodes: FakeNodes, clock: FakeClock
) -> None:
    nodes.is_up = False
    clock.move(GRACE + 1)
    for number in range(300):
        one.take(tick(0, f"entry-{number}"))
    nodes.is_up = True
    clock.move(5)
    one.queue.process_ready()
    assert len(noted(nodes)) == 100


# --- the clock, and the end -----------------------------------------------------------------------


def test_by_a_clock_that_is_not_right_nothing_is_taken(one: Replica, clock: FakeClock) -> None:
    one.is_clock_right = False
    one.take(tick(0), tick(1))
    assert one.redlock.asked == []
    assert one.queue.until_next() == 1
    one.is_clock_right = True
    clock.move(1)
    one.queue.process_ready()
    assert one.slots() == [0, 1]


def test_a_process_that_is_to_end_finishes_its_tick(one: Replica, nodes: FakeNodes) -> None:
    ended: list[object] = []

    def stop(number: int, frame: object) -> None:
        ended.append(dict(nodes.held))
        raise SystemExit

    def publish(_: Tick) -> None:
        signal.raise_signal(signal.SIGTERM)

    one.on_publish = publish
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(SystemExit):
            one.take(tick(0), tick(1))
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)
    assert one.slots() == [0]
    [(_, end)] = nodes.held.values()
    assert end > START + GRACE
    assert len(ended) == 1


def test_what_did_not_come_is_not_delivered() -> None:
    before = signal.getsignal(signal.SIGINT)
    with signals_deferred():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_name_of_a_host_that_is_no_text_can_be_logged() -> None:
    code = (
        r"import socket; socket.gethostname = lambda: 'h\udcffst'; "
        "from celery_redlock.beat import tick_queue; print(tick_queue._REPLICA.encode().decode())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "h\\udcffst\n"
