"""Which waiter of a process is woken, and when it asks: with a listener that hears at command."""

from __future__ import annotations

import math
import random
from typing import Any, cast

import pytest

from celery_redlock.redlock.transport.subscriptions import Message
from celery_redlock.redlock.waiters import MOST_PROCESSES, SPREAD_S, Queue
from celery_redlock.redlock.waiting import LATE_S, POLL_S, Waiter
from tests.support.fakes.waiters_stage import QUORUM, Stage, Wakeups


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
    assert [waiter.place() for waiter in waiters] == [1, 2, 3]


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


def test_who_waits_asks_once_more_when_a_connection_is_lost(stage: Stage) -> None:
    """Of five, three may be dead, and each be replaced before the next one's end is seen."""
    waiter = stage.waiter()
    stage.heard.lost += 1
    stage.turn(2)
    assert woken(waiter) == [True]
    waiter.wakeups.get()
    assert woken(waiter) == [False]


def test_who_is_subscribed_already_asks_once_more_at_once(stage: Stage) -> None:
    stage.heard.followed = {"k"}
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)
    stage.turn()
    assert woken(waiter) == [True]
    began = stage.clock.time
    waiter.wait(60.0)
    assert stage.clock.time == began


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
    assert stage.waiter().place() == 1


def test_a_waiter_is_gone_when_it_is_later_than_expected(stage: Stage) -> None:
    waiter, queue = stage.waiter(), stage.waiters.queues["k"]
    for late, waiting in ((0.0, [waiter]), (0.1, [])):
        waiter.expected_by = stage.clock.time - late
        stage.turn()
        assert [*queue.waiters] == waiting


def test_a_waiter_that_was_woken_but_is_gone_passes_its_turn_on(stage: Stage) -> None:
    stage.waiter()
    stage.released()
    stage.clock.move(1.0)
    second = stage.waiter()
    stage.clock.move(4.5)
    second.expected_by = stage.clock.time + 5.0
    stage.turn()
    assert woken(second) == [True]


def test_of_many_that_are_gone_one_turn_is_passed_on(stage: Stage) -> None:
    woken_one, _ = stage.waiter(), stage.waiter()
    stage.released()
    stage.clock.move(60.0)
    third = stage.waiter()
    assert woken(third) == [False], "stage.waiter has taken its wakeups"
    woken_one.leave()
    stage.turn()
    assert woken(third) == [False], "its turn was passed on before"


def test_a_turn_is_passed_on_by_the_oldest_of_many_that_are_gone(stage: Stage) -> None:
    first, second, third = (stage.waiter() for _ in range(3))
    stage.released()
    third.expected_by = math.inf
    stage.clock.move(60.0)
    stage.turn()
    assert woken(first, second, third) == [True, False, True]
    assert third.wakeups.qsize() == 1


def test_a_waiter_whose_turn_to_join_came_too_late_is_gone(stage: Stage) -> None:
    Waiter(stage.waiters, "k").wait(0.0)
    stage.clock.move(60.0)
    stage.turn()
    assert not stage.waiters.queues["k"].waiters
    assert stage.heard.followed == {"k"}, "for a while"


def test_a_waiter_may_leave_a_queue_that_was_replaced(stage: Stage) -> None:
    first, second = stage.waiter(), stage.waiter()
    stage.waiters.queues = {}
    first.leave()
    stage.turn()
    third = stage.waiter()
    second.leave()
    stage.turn()
    assert third.place() == 1


def test_a_waiter_that_was_interrupted_holds_up_nobody(stage: Stage) -> None:
    ghost = stage.waiter()
    stage.clock.move(60.0)
    second = stage.waiter()
    stage.released()
    assert woken(ghost, second) == [False, True]
    assert second.place() == 1


def test_a_waiter_taken_for_gone_joins_again(stage: Stage) -> None:
    slow = stage.waiter()
    stage.clock.move(60.0)
    stage.waiter()
    stage.released()
    slow.wait(0.0)
    stage.turn()
    assert slow.place() == 2


@pytest.mark.parametrize("payload", [b"\xff nonsense", b"7", b"7 0"])
def test_a_release_without_a_number_of_listeners_is_heard(stage: Stage, payload: bytes) -> None:
    waiter = stage.waiter()
    stage.heard.messages += [Message(node, "k", payload) for node in range(QUORUM)]
    stage.turn()
    assert woken(waiter) == [True]
    assert stage.waiters.queues["k"].listeners == 1


@pytest.mark.parametrize(("later", "nodes"), [(15, 2), (16, 1)])
def test_few_releases_are_remembered(later: int, nodes: int) -> None:
    line = Queue(0.0)
    for token in range(1 + later):
        line.count(Message(0, "k", b"%d 1" % token))
    assert line.count(Message(1, "k", b"0 1")) == nodes


# ---- how long a wait is


def test_without_a_listener_a_wait_is_a_pause(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    assert waiter.poll_interval_s == 0.0
    began = stage.clock.time
    waiter.wait(0.15)
    assert stage.clock.time == began + 0.15


def test_a_wait_is_no_longer_than_its_caller_says(stage: Stage) -> None:
    waiter = stage.waiter()
    waiter.wakeups = cast(Any, Wakeups(stage.clock))
    began = stage.clock.time
    waiter.wait(0.25)
    assert stage.clock.time == began + 0.25


def test_a_wait_that_lost_its_listener_is_short(stage: Stage) -> None:
    waiter = Waiter(stage.waiters, "k")
    began = stage.clock.time
    waiter.wait(math.inf)
    assert stage.clock.time <= began + 1.0


def test_the_nth_waiter_polls_n_times_as_seldom(stage: Stage) -> None:
    waiters = [stage.waiter() for _ in range(3)]
    assert [waiter.poll_interval_s for waiter in waiters] == [POLL_S, 2 * POLL_S, 3 * POLL_S]


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
    assert 0.0 < delays[-1] < 6 * SPREAD_S < delays[0] <= 7 * SPREAD_S


def test_a_newcomer_counts_only_the_releases_since_it_came(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    older = stage.waiter()
    for token in range(8):
        stage.released(token, listeners=8)
    younger = stage.waiter()
    older.leave()
    stage.released(9, listeners=8)
    began = stage.clock.time
    younger.wait(60.0)
    assert stage.clock.time - began > 6 * SPREAD_S


@pytest.mark.parametrize(("drawn", "least", "most"), [(0, 0.0, 0.0), (1, 0.1, 1.0)])
def test_two_processes_ask_within_the_spread_of_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, drawn: int, least: float, most: float
) -> None:
    monkeypatch.setattr(random, "uniform", lambda *bounds: bounds[drawn])
    waiter = stage.waiter()
    stage.released(listeners=2)
    began = stage.clock.time
    waiter.wait(60.0)
    assert least * SPREAD_S <= stage.clock.time - began <= most * SPREAD_S


def test_a_woken_waiter_whose_queue_is_gone_asks_at_once(stage: Stage) -> None:
    waiter, wakeups = stage.waiter(), Wakeups(stage.clock)
    waiter.wakeups = cast(Any, wakeups)
    at = stage.clock.time + 0.5

    def be_woken_by_the_end_of_the_listener() -> None:
        stage.waiters.queues.clear()
        wakeups.put(None)

    wakeups.meanwhile = [(at, be_woken_by_the_end_of_the_listener)]
    waiter.wait(60.0)
    assert stage.clock.time == at
    assert waiter._late_delay() == 0.0


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
    assert 2 < young < old
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
@pytest.mark.parametrize(("listeners", "first"), [(8, 8), (50, 16)])
def test_those_that_were_drawn_ask_before_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, listeners: int, first: int
) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, _high: low)
    waiter = stage.waiter()
    waiter.wakeups = cast(Any, Wakeups(stage.clock))
    stage.released(listeners=listeners)
    began = stage.clock.time
    waiter.wait(600.0)
    assert stage.clock.time == pytest.approx(began + first * SPREAD_S)


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


@pytest.mark.parametrize(
    ("others", "spread"), [(1, 2 * SPREAD_S), (2, 3 * SPREAD_S), (1000, 17 * SPREAD_S)]
)
def test_who_has_released_lets_other_processes_go_first(
    stage: Stage, others: int, spread: float
) -> None:
    stage.waiters.note_release("k", others)
    began = stage.clock.time
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time - began == pytest.approx(spread)
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time - began == pytest.approx(spread), "once"


def test_who_comes_long_after_its_release_asks_at_once(stage: Stage) -> None:
    stage.waiters.note_release("k", 2)
    stage.clock.move(1.0)
    began = stage.clock.time
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time == began


def test_who_lets_others_go_first_waits_no_longer_than_its_caller(stage: Stage) -> None:
    stage.waiters.note_release("k", 2)
    began = stage.clock.time
    Waiter(stage.waiters, "k").wait_for_first_turn(SPREAD_S)
    assert stage.clock.time - began == pytest.approx(SPREAD_S)


def test_many_processes_ask_within_the_spread_of_the_most(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)
    monkeypatch.setattr(random, "random", lambda: 0.0)
    waiter = stage.waiter()
    stage.released(listeners=1000)
    began = stage.clock.time
    waiter.wait(60.0)
    assert stage.clock.time - began <= MOST_PROCESSES * SPREAD_S


@pytest.mark.parametrize("listeners", [0, 1])
def test_a_process_does_not_give_way_to_itself(stage: Stage, listeners: int) -> None:
    stage.waiter().leave()
    stage.turn()
    stage.waiters.note_release("k", listeners)
    assert stage.waiters.yields_for("k") <= 0.0


@pytest.mark.parametrize(("later", "is_remembered"), [(999, True), (1000, False)])
def test_releases_of_many_locks_are_not_remembered_for_ever(
    stage: Stage, later: int, is_remembered: bool
) -> None:
    for number in range(1 + later):
        stage.waiters.note_release(f"k{number}", 1)
    assert (stage.waiters.yields_for("k0") > 0.0) == is_remembered


# ---- the first turn, and the last


def test_who_comes_first_asks_at_once(stage: Stage) -> None:
    stage.waiter().leave()
    stage.turn()
    began = stage.clock.time
    Waiter(stage.waiters, "k").wait_for_first_turn(60.0)
    assert stage.clock.time == began


def test_who_comes_second_lets_the_first_ask(stage: Stage) -> None:
    stage.waiter()
    began = stage.clock.time
    second = Waiter(stage.waiters, "k")
    second.wakeups = cast(Any, Wakeups(stage.clock))
    second.wait_for_first_turn(60.0)
    assert stage.clock.time == pytest.approx(began + 2 * POLL_S)


def test_a_caller_is_asked_about_once_a_second_whether_it_still_waits(stage: Stage) -> None:
    stage.waiter()
    asked: list[float] = []
    second = Waiter(stage.waiters, "k", lambda: asked.append(stage.clock.time))
    second.wakeups = cast(Any, Wakeups(stage.clock))
    began = stage.clock.time
    second.wait(60.0)
    assert asked == pytest.approx([began + 1.0, began + 2.0])


def test_a_caller_is_asked_whether_it_still_waits_where_nothing_is_heard(stage: Stage) -> None:
    asked: list[float] = []
    waiter = Waiter(stage.waiters, "k", lambda: asked.append(stage.clock.time))
    began = stage.clock.time
    for _ in range(6):
        waiter.wait(0.4)
        waiter.pause(0.1)
    assert asked == pytest.approx([began + 1.0, began + 2.0])


def test_a_queue_is_left_once(stage: Stage) -> None:
    waiter = stage.waiter()
    waiter.leave()
    waiter.leave()
    assert len(stage.waiters._changes) == 1
