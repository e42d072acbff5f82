"""Which waiter of a process is woken, and when it asks: with a listener that hears at command."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from queue import Empty
from typing import Any, cast

import pytest

from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from celery_redlock.redlock.waiters import MOST_PROCESSES, SPREAD_S, Queue, Waiters
from celery_redlock.redlock.waiting import LATE_S, POLL_S, Waiter
from tests.support.fakes.fake_clock import FakeClock

QUORUM = 3


class Heard:
    """Subscriptions that have what a test puts in."""

    def __init__(self) -> None:
        self.followed: set[str] = set()
        self.is_heard = True
        self.messages: list[Message] = []
        self.disowned = self.closed = 0

    def follow(self, channels: AbstractSet[str]) -> None:
        self.followed = set(channels)

    def hear(self, _seconds: float) -> list[Message]:
        messages, self.messages = self.messages, []
        return messages

    def reaches_quorum(self, channel: str) -> bool:
        return self.is_heard and channel in self.followed

    def wake(self) -> None:
        pass

    def disown(self) -> None:
        self.disowned += 1

    def close(self) -> None:
        self.closed += 1


class Wakeups:
    """Wakeups of a waiter whose timeouts pass at once, on the fake clock.

    Attributes:
        meanwhile: What happens during them: times, ascending, each with a callable.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.meanwhile: list[tuple[float, Callable[[], object]]] = []
        self._clock = clock
        self._count = 0

    def put(self, _wakeup: None) -> None:
        self._count += 1

    def empty(self) -> bool:
        return not self._count

    def get(self, timeout: float = 0.0) -> None:
        ends_at = self._clock.time + timeout
        while not self._count:
            if not self.meanwhile or self.meanwhile[0][0] >= ends_at:
                self._clock.time = ends_at
                raise Empty
            self._clock.time, happens = self.meanwhile.pop(0)
            happens()
        self._count -= 1


class Stage:
    """Waiters without a thread: `turn` is what the listener's thread would do next."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.heard = Heard()
        self.started: list[Callable[[], None]] = []
        patch.setattr(dispatch, "start_beside", lambda run, _name: self.started.append(run))
        self.waiters = Waiters(self.clock, QUORUM, lambda: cast(Subscriptions, self.heard))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.waiters._listen(cast(Any, self.heard), self.waiters.queues)

    def waiter(self, channel: str = "k") -> Waiter:
        """Return a waiter that has joined, and asked once."""
        waiter = Waiter(self.waiters, channel)
        waiter.wait(0.0)
        self.turn(3)
        while not waiter.wakeups.empty():
            waiter.wakeups.get()
        return waiter

    def released(
        self,
        token: int = 1,
        by: Sequence[int] = range(QUORUM),
        channel: str = "k",
        listeners: int = 1,
    ) -> None:
        payload = f"{token} {listeners}".encode()
        self.heard.messages += [Message(node, channel, payload) for node in by]
        self.turn()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def woken(*waiters: Waiter) -> list[bool]:
    return [not waiter.wakeups.empty() for waiter in waiters]


# ---- who is woken


def test_a_release_wakes_the_oldest_waiter_alone(stage: Stage) -> None:
    waiters = [stage.waiter() for _ in range(3)]
    stage.released()
    assert woken(*waiters) == [True, False, False]
    assert [waiter.place for waiter in waiters] == [1, 2, 3]


def test_the_next_in_turn_is_woken_by_the_next_release(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    first.leave()
    stage.released(1)
    assert woken(first, second) == [False, True]


def test_a_release_is_heard_when_a_majority_has_published_it(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.released(1, by=[0, 1])
    stage.released(2, by=[2, 3])
    stage.released(1, by=[0])
    assert woken(waiter) == [False]
    stage.released(1, by=[4])
    assert woken(waiter) == [True]


def test_a_release_wakes_once_however_many_nodes_publish_it(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.released(by=range(5))
    assert waiter.wakeups.qsize() == 1


def test_another_lock_s_release_wakes_nobody(stage: Stage) -> None:
    waiter, other = stage.waiter(), stage.waiter("other")
    stage.released(channel="other")
    stage.released(channel="unknown")
    assert woken(waiter, other) == [False, True]


def test_who_has_just_subscribed_asks_once_more(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)
    stage.heard.is_heard = False
    stage.turn(2)
    assert woken(waiter) == [False]
    stage.heard.is_heard = True
    stage.turn()
    assert woken(waiter) == [True]


def test_a_waiter_that_leaves_without_asking_wakes_the_next(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    stage.released()
    first.leave()
    stage.turn()
    assert woken(second) == [True]


def test_a_waiter_that_has_asked_wakes_nobody_when_it_leaves(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    first.leave()
    stage.turn()
    assert woken(second) == [False]


def test_a_waiter_that_was_woken_and_asked_wakes_nobody(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    stage.released()
    first.wait(60.0)
    first.has_asked(stage.clock.time)
    first.leave()
    stage.turn()
    assert woken(second) == [False]


def test_a_waiter_struck_after_its_wakeup_wakes_the_next(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    stage.released()
    first.wait(60.0)
    first.leave()
    stage.turn()
    assert woken(second) == [True]


def test_a_release_between_an_attempt_and_its_wait_is_not_missed(stage: Stage) -> None:
    stage.waiter().leave()
    stage.turn()
    waiter = Waiter(stage.waiters, "k")
    waiter.has_asked(stage.clock.time)
    stage.released()
    waiter.wait(0.0)
    stage.turn()
    assert woken(waiter) == [True]


def test_a_release_before_an_attempt_does_not_repeat_it(stage: Stage) -> None:
    stage.waiter().leave()
    stage.released()
    stage.clock.move(0.1)
    waiter = Waiter(stage.waiters, "k")
    waiter.has_asked(stage.clock.time)
    waiter.wait(0.0)
    stage.turn()
    assert woken(waiter) == [False]


def test_a_release_heard_late_wakes_the_oldest_once(stage: Stage) -> None:
    first = stage.waiter()
    second = Waiter(stage.waiters, "k")
    second.has_asked(stage.clock.time)
    stage.released()
    second.wait(0.0)
    stage.turn()
    assert woken(first, second) == [True, False]
    assert first.wakeups.qsize() == 1


def test_a_waiter_that_is_gone_keeps_no_subscription(stage: Stage) -> None:
    stage.waiter()
    stage.clock.move(60.0)
    stage.turn()
    stage.clock.move(60.0)
    stage.turn()
    assert stage.heard.followed == set()


def test_a_waiter_that_is_gone_slows_down_nobody(stage: Stage) -> None:
    stage.waiter()
    stage.clock.move(60.0)
    assert stage.waiter().place == 1


def test_a_waiter_that_was_woken_but_is_gone_passes_its_turn_on(stage: Stage) -> None:
    stage.waiter()
    stage.released()
    stage.clock.move(1.0)
    second = stage.waiter()
    stage.clock.move(4.5)
    second.expected_by = stage.clock.time + 5.0
    stage.turn()
    assert woken(second) == [True]


def test_a_waiter_that_was_interrupted_holds_up_nobody(stage: Stage) -> None:
    ghost = stage.waiter()
    stage.clock.move(60.0)
    second = stage.waiter()
    stage.released()
    assert woken(ghost, second) == [False, True]
    assert second.place == 1


def test_a_waiter_taken_for_gone_joins_again(stage: Stage) -> None:
    slow = stage.waiter()
    stage.clock.move(60.0)
    stage.waiter()
    stage.released()
    slow.wait(0.0)
    stage.turn()
    assert slow.place == 2


def test_nonsense_from_a_node_is_not_heard_as_a_number(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.heard.messages += [Message(node, "k", b"\xff nonsense") for node in range(QUORUM)]
    stage.turn()
    assert woken(waiter) == [True]
    assert stage.waiters.queues["k"].listeners == 1


def test_few_releases_are_remembered() -> None:
    line = Queue(0.0)
    for token in range(10_000):
        line.count(Message(0, "k", b"%d 1" % token))
    assert len(line._published_by) < 100


# ---- how long a wait is


def test_without_a_listener_a_wait_is_a_pause(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    assert waiter.polls_s == 0.0
    began = stage.clock.time
    waiter.wait(0.15)
    assert stage.clock.time == began + 0.15


def test_a_wait_that_lost_its_listener_is_short(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    began = stage.clock.time
    waiter.wait(math.inf)
    assert stage.clock.time <= began + 1.0


def test_the_nth_waiter_polls_n_times_as_seldom(stage: Stage) -> None:
    waiters = [stage.waiter() for _ in range(3)]
    assert [waiter.polls_s for waiter in waiters] == [POLL_S, 2 * POLL_S, 3 * POLL_S]


def test_a_woken_waiter_asks_at_once_if_nobody_else_listens(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.released()
    began = stage.clock.time
    waiter.wait(600.0)
    assert stage.clock.time == began


def test_processes_are_spread_and_the_older_ask_sooner(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: high)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    waiter, delays = stage.waiter(), []
    for token in range(8):
        stage.released(token, listeners=8)
        began = stage.clock.time
        waiter.wait(600.0)
        delays.append(stage.clock.time - began)
    assert delays == sorted(delays, reverse=True)
    assert 0.0 < delays[-1] < delays[0] <= 7 * SPREAD_S


@pytest.mark.parametrize("listeners", [17, 1000])
def test_few_of_many_processes_ask_and_the_older_more_surely(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, listeners: int
) -> None:
    monkeypatch.setattr(random, "random", random.Random(1).random)
    waiter = stage.waiter()
    line = stage.waiters.queues["k"]
    line.listeners = listeners

    def asking(passed_over: int) -> float:
        line.releases = waiter.releases_before + passed_over
        asked = [waiter._delay() is not None for _ in range(4000)]
        return sum(asked) / len(asked) * listeners

    young, old = asking(1), asking(10_000)
    assert young < old
    assert old <= 2 * MOST_PROCESSES


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among more than a few processes, a waiter is not one of the first to ask."""
    monkeypatch.setattr(random, "random", lambda: 0.999)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("listeners", [5, 20, 100])
def test_a_lone_waiter_asks_soon_despite_stale_listeners(stage: Stage, listeners: int) -> None:
    waiter = stage.waiter()
    waiter.wakeups = cast(Any, Wakeups(stage.clock))
    stage.released(listeners=listeners)
    began = stage.clock.time
    waiter.wait(600.0)
    assert 0.0 < stage.clock.time - began <= listeners * LATE_S


@pytest.mark.usefixtures("undrawn")
def test_each_release_puts_off_a_waiter_that_was_not_drawn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    waiter, wakeups = stage.waiter(), Wakeups(stage.clock)
    waiter.wakeups = cast(Any, wakeups)
    stage.released(1, listeners=50)
    again = stage.clock.time + 0.1
    wakeups.meanwhile = [(again, lambda: stage.released(2, listeners=50))]
    waiter.wait(600.0)
    assert stage.clock.time == pytest.approx(again + 50 * LATE_S)


@pytest.mark.usefixtures("undrawn")
def test_a_waiter_that_was_not_drawn_still_polls_in_time(stage: Stage) -> None:
    waiter = stage.waiter()
    waiter.wakeups = cast(Any, Wakeups(stage.clock))
    stage.released(listeners=1_000_000)
    began = stage.clock.time
    waiter.wait(600.0)
    assert stage.clock.time == pytest.approx(began + POLL_S)


@pytest.mark.usefixtures("undrawn")
def test_a_waiter_struck_before_it_asks_late_wakes_the_next(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    wakeups = Wakeups(stage.clock)
    first.wakeups = cast(Any, wakeups)
    stage.released(listeners=100)

    def strike() -> None:
        raise KeyboardInterrupt

    wakeups.meanwhile = [(stage.clock.time, strike)]
    with pytest.raises(KeyboardInterrupt):
        first.wait(600.0)
    first.leave()
    stage.turn()
    assert woken(second) == [True]


def test_who_has_released_lets_other_processes_go_first(stage: Stage) -> None:
    stage.waiters.note_release("k", 2)
    began = stage.clock.time
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time - began == pytest.approx(3 * SPREAD_S)
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time - began == pytest.approx(3 * SPREAD_S), "once"


@pytest.mark.parametrize("listeners", [0, 1])
def test_a_process_does_not_give_way_to_itself(stage: Stage, listeners: int) -> None:
    stage.waiter().leave()
    stage.turn()
    stage.waiters.note_release("k", listeners)
    assert stage.waiters.yields_for("k") == 0.0


def test_releases_of_many_locks_are_not_remembered_for_ever(stage: Stage) -> None:
    for number in range(5000):
        stage.waiters.note_release(f"k{number}", 1)
    assert len(stage.waiters._yields_until) <= 1000


# ---- the listener


def test_a_lock_without_waiters_is_unsubscribed_after_a_while(stage: Stage) -> None:
    stage.waiter().leave()
    stage.turn()
    assert stage.heard.followed == {"k"}
    stage.clock.move(60.0)
    stage.turn()
    assert stage.heard.followed == set()
    assert stage.waiters.queues == {}


def test_the_listener_ends_without_waiters_and_starts_again(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)
    waiter.leave()
    [listen] = stage.started
    hear = stage.heard.hear

    def later(seconds: float) -> list[Message]:
        stage.clock.move(seconds)
        return hear(seconds)

    stage.heard.hear = later  # type: ignore[assignment, method-assign]
    listen()
    assert stage.heard.closed == 1
    stage.clock.move(60.0)
    Waiter(stage.waiters, "k").wait(0.0)
    assert len(stage.started) == 2


def test_a_listener_that_fails_is_told_of_and_replaced(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)

    def fail(_seconds: float) -> list[Message]:
        raise MemoryError

    stage.heard.hear = fail  # type: ignore[method-assign]
    stage.started.pop()()
    assert "listener failed, polling" in caplog.text
    assert waiter.place == 0
    stage.clock.move(60.0)
    waiter.wait(0.0)
    assert len(stage.started) == 1


def test_a_listener_that_can_not_begin_is_told_of_and_replaced(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Subscriptions:
        raise OSError("too many open files")

    stage.waiters._subscribe = fail
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)
    stage.started.pop()()
    assert "listener failed, polling" in caplog.text
    assert waiter.place == 0
    stage.clock.move(60.0)
    waiter.wait(0.0)
    assert len(stage.started) == 1


def test_a_child_forgets_its_parent_s_waiters(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.waiters._listeners["here"] = cast(Any, stage.heard)
    stage.waiters.forget()
    assert stage.heard.disowned == 1
    assert waiter.place == 0
    stage.clock.move(60.0)
    waiter.wait(0.0)
    assert len(stage.started) == 2, "it joins the child's own"


def test_no_thread_for_the_listener_is_no_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(dispatch, "start_beside", fail)
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.1)
    assert waiter.joined is None
