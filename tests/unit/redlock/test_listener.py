"""The listener that wakes waiters: when it starts, ends, fails, and is replaced."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, cast

import pytest

from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from celery_redlock.redlock.waiters import Queue
from celery_redlock.redlock.waiting import Waiter
from tests.support.fakes.waiters_stage import Heard, Stage


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_a_lock_without_waiters_is_unsubscribed_after_a_while(stage: Stage) -> None:
    stage.waiter().leave()
    stage.turn()
    stage.clock.move(4.9)
    stage.turn()
    assert stage.heard.followed == {"k"}
    stage.waiters.queues["k"].used_at = stage.clock.time - 5.0
    stage.turn()
    assert stage.heard.followed == set()
    assert stage.waiters.queues == {}


def test_the_listener_ends_without_waiters_and_starts_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert not caplog.messages
    stage.clock.move(60.0)
    Waiter(stage.waiters, "k").wait(0.0)
    assert stage.threads == ["redlock-listener"] * 2


def test_a_waiter_that_comes_as_the_listener_ends_is_heard(stage: Stage) -> None:
    Waiter(stage.waiters, "k").wait(0.0)
    late = Waiter(stage.waiters, "k")
    follow, places = stage.heard.follow, list[int]()

    def join_at_the_end(channels: AbstractSet[str]) -> None:
        follow(channels)
        if not channels and 1 not in places:
            late.wait(0.0)

    def leave_in_the_end(seconds: float) -> list[Message]:
        stage.clock.move(60.0 if late.joined is None else seconds)
        places.append(late.place())
        if late.place():
            late.leave()
        return []

    stage.heard.follow = join_at_the_end  # type: ignore[method-assign]
    stage.heard.hear = leave_in_the_end  # type: ignore[assignment, method-assign]
    [listen] = stage.started
    listen()
    assert 1 in places
    assert len(stage.started) == stage.heard.closed == 1


def test_a_waiter_whose_listener_was_closed_joins_the_next(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)

    def close(_seconds: float) -> list[Message]:
        if stage.waiters.queues:
            stage.waiters.close()
        return []

    stage.heard.hear = close  # type: ignore[method-assign]
    stage.started.pop()()
    assert waiter.place() == 0
    assert not caplog.messages
    stage.clock.move(60.0)
    waiter.wait(0.0)
    assert len(stage.started) == 1


def test_a_listener_that_ended_before_its_waiter_joined_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the thread of the waiter does not run until the listener has found nobody."""
    waiter = Waiter(stage.waiters, "k")
    start = stage.waiters.start

    def start_and_listen() -> bool:
        is_started = start()
        while stage.started:
            stage.started.pop()()
        return is_started

    with monkeypatch.context() as patch:
        patch.setattr(stage.waiters, "start", start_and_listen)
        waiter.wait(0.0)
    assert stage.heard.closed == 1
    stage.clock.move(2.0)
    waiter.wait(0.0)
    assert len(stage.started) == 1


def test_a_listener_that_is_closed_without_waiters_ends(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.waiters.close()
    stage.waiters.start()

    def close(_seconds: float) -> list[Message]:
        stage.waiters.close()
        return []

    stage.heard.hear = close  # type: ignore[method-assign]
    stage.started.pop()()
    assert stage.heard.woken == 2, "as it begins, and out of what it hears"
    assert stage.heard.closed == 1
    assert not caplog.messages


def test_one_listener_is_started_until_it_should_have_begun(stage: Stage) -> None:
    for _ in range(2):
        Waiter(stage.waiters, "k").wait(0.0)
        assert len(stage.started) == 1
    stage.clock.move(1.0)
    Waiter(stage.waiters, "k").wait(0.0)
    assert len(stage.started) == 2
    stage.waiters._listeners["running"] = cast(Any, stage.heard)
    stage.clock.move(60.0)
    Waiter(stage.waiters, "k").wait(0.0)
    assert len(stage.started) == 2


def test_a_second_listener_leaves_the_first_alone(stage: Stage) -> None:
    """As when the first began so late that another was started."""
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)
    stage.clock.move(1.0)
    Waiter(stage.waiters, "k").wait(0.0)
    [first, second], places = stage.started, list[int]()

    def listen_twice(_seconds: float) -> list[Message]:
        if waiter.place():
            subscribe, stage.waiters._subscribe = stage.waiters._subscribe, cast(Any, Heard)
            second()
            stage.waiters._subscribe = subscribe
            places.append(waiter.place())
            stage.waiters.close()
        return []

    stage.heard.hear = listen_twice  # type: ignore[method-assign]
    first()
    assert places == [1]


def test_a_closed_listener_leaves_the_next_alone(stage: Stage) -> None:
    stage.waiters.start()
    queues, following = {"k": Queue(0.0)}, cast(Any, Heard())

    def be_replaced(_seconds: float) -> list[Message]:
        stage.waiters.close()
        stage.waiters.queues = queues
        stage.waiters._listeners["running"] = following
        return []

    stage.heard.hear = be_replaced  # type: ignore[method-assign]
    stage.started.pop()()
    assert stage.waiters.queues is queues
    assert stage.waiters._listeners == {"running": following}
    assert stage.heard.closed == 1


def test_a_change_wakes_the_listener(stage: Stage) -> None:
    stage.waiters._listeners["running"] = cast(Any, stage.heard)
    Waiter(stage.waiters, "k").wait(0.0)
    assert stage.heard.woken == 1


def test_a_listener_that_fails_is_told_of_and_replaced(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    waiter = Waiter(stage.waiters, "k")
    waiter.wait(0.0)

    def fail(_seconds: float) -> list[Message]:
        raise MemoryError

    stage.heard.hear = fail  # type: ignore[method-assign]
    stage.clock.move(60.0)
    stage.started.pop()()
    assert caplog.messages == ["listener failed, polling"]
    assert "MemoryError" in caplog.text
    assert waiter.place() == 0
    waiter.wait(0.0)
    assert not stage.started, "not again and again"
    assert waiter.joined is not stage.waiters.queues
    stage.clock.move(1.0)
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
    assert waiter.place() == 0
    stage.clock.move(60.0)
    waiter.wait(0.0)
    assert len(stage.started) == 1


def test_a_child_forgets_its_parent_s_waiters(stage: Stage) -> None:
    waiter = stage.waiter()
    stage.waiters._listeners["running"] = cast(Any, stage.heard)
    stage.waiters.forget()
    assert stage.heard.disowned == 1
    assert waiter.place() == 0
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
