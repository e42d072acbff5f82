"""The keeper's thread: when it starts, wakes up and ends."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.keeper_thread import LOOK_S
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.threads import dispatch, native
from celery_redlock.redlock.threads.wakeup import Wakeup
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.keeper_stage import PERIOD, TTL, Stage, VirtualWakeup, in_this_thread


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.fixture
def wakeup(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> VirtualWakeup:
    return VirtualWakeup(stage, monkeypatch)


def test_the_thread_comes_in_time_and_only_then(stage: Stage, wakeup: VirtualWakeup) -> None:
    stage.keep()
    wakeup.run_for(10 * PERIOD + 1)
    assert stage.times() == pytest.approx([PERIOD * (i + 1) for i in range(10)])
    assert wakeup.waits <= 10 * PERIOD + 12, "once a second it looks at the releases"


def test_one_thread_is_enough(stage: Stage) -> None:
    stage.keep("a")
    stage.keep("b")
    assert len(stage.threads) == 1


def test_no_thread_is_started_before_there_is_a_lease(stage: Stage) -> None:
    assert not stage.threads


def test_the_thread_ends_without_leases_and_is_started_again(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    """With the next lease."""
    stage.keeper.forget(stage.keep())
    wakeup.run_for(1e9)
    assert stage.clock.now() < 1000 + 2 * TTL, "it ended by itself"
    lease = stage.keep()
    assert len(stage.threads) == 2
    wakeup.run_for(PERIOD + 1)
    assert stage.rounds[-1][1] == [lease]


def test_the_thread_of_a_collected_lock_ends_with_its_last_lease(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    """And not ten seconds later: a program may make a lock for each call."""
    lease = stage.keep()

    def meanwhile() -> None:
        if wakeup.waits == 1:
            stage.keeper.end_when_idle()
        if len(stage.rounds) == 3:
            stage.keeper.forget(lease)

    wakeup.meanwhile = meanwhile
    wakeup.run_for(1e9)
    assert len(stage.rounds) == 3, "it renewed the lease while there was one"
    assert stage.clock.now() - 1000 <= 3 * PERIOD + 2 * LOOK_S


def test_the_thread_goes_on_until_unused_connections_are_closed(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    told: list[bool] = []

    def tidy(has_leases: bool) -> bool:  # as the keeper calls it
        told.append(has_leases)
        return stage.clock.now() < 1000 + 90

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, tidy=tidy)
    lease = stage.keep()
    wakeup.meanwhile = lambda: stage.keeper.forget(lease)
    wakeup.run_for(1e9)
    assert 90 <= stage.clock.now() - 1000 <= 100
    assert told[:2] == [True, False]


def test_the_thread_connects_again_for_a_first_lease(stage: Stage, wakeup: VirtualWakeup) -> None:
    prepared: list[tuple[float, float]] = []
    stage.keeper = Keeper(
        stage.clock, stage.extend, stage.lost.append,
        prepare=lambda seconds: prepared.append((stage.clock.now(), seconds)),
        tidy=lambda _: True,
    )  # fmt: skip
    first = stage.keep()
    second = stage.lease("second")

    def meanwhile() -> None:
        if stage.clock.now() >= 1005:
            stage.keeper.forget(first)
        if stage.clock.now() >= 1010 and second not in stage.keeper.kept():
            stage.keeper.keep(second)

    wakeup.meanwhile = meanwhile
    wakeup.run_for(20)
    assert len(prepared) == 2
    prepared_at, until_due = prepared[0]
    assert prepared_at == 1000
    assert until_due == pytest.approx(TTL / 3, rel=0.02)


def test_the_thread_goes_on_after_an_error_in_a_renewal(
    stage: Stage, wakeup: VirtualWakeup, caplog: pytest.LogCaptureFixture
) -> None:
    lease = stage.keep()

    def fail_once(leases: Sequence[Lease]) -> None:
        stage.answer = stage.renew
        raise ZeroDivisionError

    stage.answer = fail_once
    wakeup.run_for(10 * TTL)
    assert len(stage.rounds) > 25
    assert not lease.lost
    assert [record.getMessage() for record in caplog.records] == ["keeper failed, retrying"]
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].exc_info


def test_an_error_without_end_costs_the_lease_and_no_more(
    stage: Stage, wakeup: VirtualWakeup, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither time nor log lines."""
    lease, deadline = stage.keep(), stage.clock.now() + TTL
    stage.answer = stage.fail
    wakeup.run_for(10 * TTL)
    assert stage.lost == [lease]
    assert wakeup.waits < 100
    assert len(caplog.records) < 100
    assert all(time < deadline for time, _ in stage.rounds)


def test_a_tick_that_always_fails_is_tried_twice_a_second(
    stage: Stage, wakeup: VirtualWakeup, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(has_leases: bool) -> bool:  # as the keeper calls it
        raise ZeroDivisionError

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, tidy=fail)
    stage.keep()
    wakeup.run_for(10)
    assert 19 <= len(caplog.records) <= 22


def test_a_thread_that_is_ended_from_outside_is_replaced(
    stage: Stage, wakeup: VirtualWakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise SystemExit

    stage.keep("a")
    wakeup.meanwhile = end
    in_this_thread(monkeypatch, time, "sleep", end)
    with pytest.raises(SystemExit):
        wakeup.run_for(PERIOD)
    stage.clock.move(2.0)
    stage.keep("b")
    assert len(stage.threads) == 2


def test_beside_greenlets_the_thread_never_ends(
    stage: Stage, wakeup: VirtualWakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_thread(monkeypatch, native, "is_green", lambda: True)
    stage.keeper.forget(stage.keep())
    wakeup.run_for(300)
    assert stage.clock.now() >= 1300


def test_beside_greenlets_the_thread_ends_with_its_lock(
    stage: Stage, wakeup: VirtualWakeup, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_thread(monkeypatch, native, "is_green", lambda: True)
    stage.keeper.forget(stage.keep())
    stage.keeper.end_when_idle()
    wakeup.run_for(1e9)
    assert stage.clock.now() <= 1000 + LOOK_S


def test_a_lease_added_as_the_thread_ends_is_renewed_by_it(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    added: list[Lease] = []

    class Crowded(Keeper):
        def _has_work(self) -> bool:
            has_work = super()._has_work()
            if not has_work and not added:
                added.append(stage.keep("new", 3))
            return has_work

    stage.keeper = Crowded(stage.clock, stage.extend, stage.lost.append)
    stage.keeper.forget(stage.keep("old"))
    wakeup.run_for(60)
    assert len(stage.threads) == 1
    assert len(stage.rounds) > 10
    assert not stage.lost


def test_the_thread_survives_an_error_in_telling_of_a_loss(
    stage: Stage, wakeup: VirtualWakeup, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(lease: Lease) -> None:
        raise ZeroDivisionError

    stage.keeper = Keeper(stage.clock, stage.extend, lose)
    lost = stage.keep("lost", ttl=3)
    other = stage.keep("other", ttl=TTL)
    stage.answer = lambda batch: stage.renew([one for one in batch if one is other])
    wakeup.run_for(10 * TTL)
    assert lost.lost
    assert stage.rounds[-1][0] > 1000 + 9 * TTL
    [told] = [record.getMessage() for record in caplog.records]
    assert told == "loss not reported to the holder key=lost holder="


def test_the_stages_time_is_not_that_of_other_threads(stage: Stage, wakeup: VirtualWakeup) -> None:
    """A keeper of an earlier test goes on by the clock on the wall."""
    other = threading.Thread(target=Wakeup().wait, args=(0.0,))
    other.start()
    other.join()
    assert not wakeup.waits
    assert stage.clock.now() == 1000


def test_a_thread_has_the_name_of_what_it_is_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    in_this_thread(monkeypatch, dispatch, "start_thread", lambda run, name: names.append(name))
    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append)
    stage.keep()
    assert names == ["redlock-keeper"]


def test_only_a_lease_that_is_due_sooner_wakes_the_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.keep("first", 30)
    rang: list[bool] = []

    def wait(wakeup: Wakeup, seconds: float) -> bool:
        stage.keep("later", 60)
        rang.append(wakeup.clear())
        stage.keeper._thread.wake(stage.keeper._thread._wakes_at)
        rang.append(wakeup.clear())
        stage.keep("sooner", 0.6)
        rang.append(wakeup.clear())
        stage.keeper.stop()
        return True

    in_this_thread(monkeypatch, Wakeup, "wait", wait)
    stage.threads[-1]()
    assert rang == [False, False, True]


def test_a_lease_that_came_during_a_tick_is_not_slept_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.keep("first", 30)
    due_at = stage.clock.now() + 0.3
    monkeypatch.setattr(stage.keeper._thread, "_next_due_at", lambda: due_at)
    waits: list[tuple[float, bool]] = []

    def wait(wakeup: Wakeup, seconds: float) -> bool:
        stage.keeper._thread.wake(due_at)
        waits.append((seconds, wakeup.clear()))
        stage.keeper.stop()
        return True

    in_this_thread(monkeypatch, Wakeup, "wait", wait)
    stage.threads[-1]()
    [(seconds, is_woken)] = waits
    assert seconds == pytest.approx(0.3)
    assert not is_woken


def is_woken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> bool:
    """Return whether the thread, which has just fallen asleep, is woken by what comes meanwhile."""
    rang: list[bool] = []

    def wait(wakeup: Wakeup, seconds: float) -> bool:
        meanwhile()
        rang.append(wakeup.clear())
        stage.keeper.stop()
        return True

    in_this_thread(monkeypatch, Wakeup, "wait", wait)
    stage.threads[-1]()
    [is_rung] = rang
    return is_rung


def test_a_first_lease_wakes_a_thread_that_has_to_connect(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread looks by the time at which the lease is due, and connecting takes longer."""
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1e9, ends_at=1e9))
    assert is_woken(stage, monkeypatch, lambda: stage.keep("first", 3))


@pytest.mark.parametrize(
    ("first", "second", "later"), [(3.0, 3, 2.0), (30.0, 60, 2.0), (1.5, 3, 0.7)]
)
def test_a_thread_that_sleeps_too_long_is_woken(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, first: float, second: int, later: float
) -> None:
    """The process was stopped as the thread fell asleep: its sleep begins when it goes on."""
    stage.keep("first", first)

    def go_on() -> None:
        stage.clock.move(later)
        stage.keep("second", second)

    assert is_woken(stage, monkeypatch, go_on)


def test_stop_ends_the_thread_and_keeps_nothing(stage: Stage, wakeup: VirtualWakeup) -> None:
    stage.keep()
    stage.keeper.stop()
    wakeup.run_for(1e9)
    assert wakeup.waits <= 1
    assert not stage.rounds
    assert not stage.lost


ERRORS = pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, GeneratorExit])


@ERRORS
def test_the_thread_survives_what_is_raised_in_it_from_outside(
    stage: Stage,
    wakeup: VirtualWakeup,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    in_this_thread(monkeypatch, time, "sleep", stage.clock.move)
    strikes = [error()]

    def strike() -> None:
        if strikes:
            raise strikes.pop()

    wakeup.meanwhile = strike
    lease = stage.keep()
    wakeup.run_for(3 * PERIOD)
    assert len(stage.rounds) >= 2
    assert not lease.lost
    assert [record.getMessage() for record in caplog.records] == ["keeper interrupted, continuing"]
    assert caplog.records[0].exc_info


@ERRORS
def test_the_thread_survives_any_error_of_a_clock(
    stage: Stage, wakeup: VirtualWakeup, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """At whatever look at it, inside a tick or between two."""
    in_this_thread(monkeypatch, time, "sleep", stage.clock.move)
    now, left = stage.clock.now, [math.inf]

    def read() -> float:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return now()

    monkeypatch.setattr(stage.clock, "now", read)
    for look in range(2, 60):  # the first one is the caller's
        lease = stage.keep()
        left[0] = look
        wakeup.run_for(1.5 * PERIOD)
        assert left[0] <= 0, "it was raised"
        assert lease in stage.rounds[-1][1], look
        assert not lease.lost


def test_of_two_threads_that_were_started_one_ends_at_once(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    stage.keep("a")
    stage.keeper.stop()
    lease = stage.keep("b")
    old, new = stage.threads

    def renew(leases: Sequence[Lease]) -> None:
        stage.renew(leases)
        waits = wakeup.waits
        new()
        assert wakeup.waits == waits

    stage.answer = renew
    wakeup.end = stage.clock.now() + PERIOD + 1
    old()
    assert [batch for _, batch in stage.rounds] == [[lease]]


def test_a_thread_that_did_not_start_is_started_by_the_next(stage: Stage) -> None:
    stage.keep("a")
    stage.clock.move(2.0)  # it was struck as it began
    stage.keep("b")
    assert len(stage.threads) == 2


def test_a_thread_that_can_not_be_started_says_so_each_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Callable[[], None]] = []

    def refuse(run: Callable[[], None], name: str) -> None:
        tries.append(run)
        raise RuntimeError("can't start new thread")

    in_this_thread(monkeypatch, dispatch, "start_thread", refuse)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            stage.keep()
    assert len(tries) == 2


def test_a_lease_added_as_the_thread_falls_asleep_is_in_time(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    class Crowded(Keeper):
        def tick(self) -> float:
            wakes_at = super().tick()
            if len(self.kept()) < 2:
                stage.keep("new", 0.6)
            return wakes_at

    stage.keeper = Crowded(stage.clock, stage.extend, stage.lost.append)
    stage.keep("long", 300)
    wakeup.run_for(10)
    assert any(lease.key == "new" for _, batch in stage.rounds for lease in batch)
    assert not stage.lost


def test_a_lease_added_while_the_next_time_is_published_is_in_time(
    stage: Stage, wakeup: VirtualWakeup, caplog: pytest.LogCaptureFixture
) -> None:
    class Crowded(Keeper):
        has_come = False

        def tick(self) -> float:
            wakes_at = super().tick()
            self.has_come = True
            return wakes_at

        def _next_due_at(self) -> float:
            if self.has_come and len(self.kept()) < 2:
                stage.keep("new", 0.6)
            return super()._next_due_at()

    stage.keeper = Crowded(stage.clock, stage.extend, stage.lost.append)
    stage.keep("long", 300)
    wakeup.run_for(10)
    assert any(lease.key == "new" for _, batch in stage.rounds for lease in batch)
    assert not stage.lost
    assert not caplog.records


def test_the_thread_stays_while_it_is_used_now_and_then(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    def use() -> None:
        if wakeup.waits % 5 == 0:
            stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1e9, ends_at=1e9))
            stage.keeper.settle("owner")

    wakeup.meanwhile = use
    stage.keeper.forget(stage.keep())
    wakeup.run_for(60)
    assert stage.clock.now() >= 1060, "it did not end before"


def test_the_thread_prepares_itself_once_before_anything_is_due(
    stage: Stage, wakeup: VirtualWakeup
) -> None:
    prepared = []

    def prepare(_: float) -> None:
        prepared.append(stage.clock.now())
        raise ZeroDivisionError  # whatever comes of it, the leases are renewed

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, prepare)
    stage.keep()
    wakeup.run_for(3 * PERIOD + 1)
    assert prepared == [1000.0]
    assert stage.times() == pytest.approx([PERIOD, 2 * PERIOD, 3 * PERIOD])


def test_without_a_descriptor_no_thread_is_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails to begin would leave its leases to nobody."""

    def pipe() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pipe", pipe)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Too many open files"):
                stage.keep()
    assert not stage.threads
    stage.keep()
    assert len(stage.threads) == 1


@pytest.mark.parametrize("end", [Keeper.stop, Keeper.end_when_idle])
def test_an_end_wakes_the_thread(stage: Stage, end: Callable[[Keeper], None]) -> None:
    woken: list[bool] = []
    wakeup = cast(Wakeup, SimpleNamespace(wake=lambda: woken.append(True)))
    stage.keeper._thread._threads["running"] = wakeup
    end(stage.keeper)
    assert woken == [True]


def test_the_thread_pauses_after_each_error_from_outside(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, pauses = iter([True, True, False]), list[float]()
    monkeypatch.setattr(stage.keeper._thread, "_goes_on_after_error", lambda *_: next(again))
    monkeypatch.setattr(native, "original", lambda *_: pauses.append)
    stage.keeper._thread._run(Wakeup())
    assert pauses == [0.5, 0.5]


def test_a_child_closes_its_copy_of_the_parent_s_wakeup(stage: Stage) -> None:
    wakeup = Wakeup()
    stage.keeper._thread._threads["running"] = wakeup
    stage.keeper.forget_all()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wakeup.fd)


def test_a_thread_that_a_callback_has_forked_ends_in_the_child(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    thread, ticks = stage.keeper._thread, [math.inf]

    def tick() -> float:
        if not ticks:
            raise SystemExit
        stage.keeper.forget_all()  # as in a child; there it is this thread that goes on
        return ticks.pop()

    monkeypatch.setattr(thread, "_tick", tick)
    thread._run(Wakeup())
    assert caplog.records == []
