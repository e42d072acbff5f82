"""The keeper, by ticks of a clock that only moves when it is told to."""

from __future__ import annotations

import contextlib
import math
import random
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_redlock.redlock import keeper
from celery_redlock.redlock.keeper import BATCH, Keeper, due_at, patience_for
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.keeper_stage import PERIOD, TTL, Stage, in_this_thread


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


# ---- when


def test_a_lease_is_extended_when_a_third_of_its_ttl_has_passed(stage: Stage) -> None:
    stage.keep()
    assert stage.keeper.tick() == pytest.approx(1000 + PERIOD)
    stage.clock.move(PERIOD - 0.001)
    stage.keeper.tick()
    assert not stage.rounds
    stage.clock.move(0.002)
    assert stage.keeper.tick() == pytest.approx(1000 + 2 * PERIOD, abs=0.01)
    assert len(stage.rounds) == 1


def test_a_kept_lease_is_renewed_every_third_of_its_ttl(stage: Stage) -> None:
    lease = stage.keep()
    stage.tick_for(100 * PERIOD + 1)
    assert stage.times() == pytest.approx([PERIOD * (i + 1) for i in range(100)])
    assert not lease.lost
    assert stage.keeper.kept() == [lease]


def test_each_extension_of_a_kept_lease_is_told(stage: Stage) -> None:
    lease, told = stage.lease(), list[float]()
    stage.keeper.keep(lease, on_extended=lambda lease: told.append(lease.deadline))
    stage.tick_for(2 * PERIOD + 1)
    assert len(told) == 2
    assert told[-1] == lease.deadline


def test_an_extension_that_failed_is_not_told(stage: Stage) -> None:
    told: list[Lease] = []
    stage.keeper.keep(stage.lease(), on_extended=told.append)
    stage.answer = stage.refuse
    stage.tick_for(2 * PERIOD)
    assert stage.rounds
    assert told == []


def test_a_batch_that_broke_off_tells_of_what_was_extended(stage: Stage) -> None:
    told: list[Lease] = []
    first, second = stage.lease("k1"), stage.lease("k2")
    for lease in (first, second):
        stage.keeper.keep(lease, on_extended=told.append)

    def break_off(leases: Sequence[Lease]) -> None:
        stage.renew([first])
        raise ZeroDivisionError

    stage.answer = break_off
    stage.clock.move(PERIOD)
    with pytest.raises(ZeroDivisionError):
        stage.keeper.tick()
    assert told == [first]


def test_leases_of_different_ttl_have_their_own_periods(stage: Stage) -> None:
    long, short = stage.keep("long", 300), stage.keep("short", 3)
    stage.tick_for(101)
    assert sum(short in batch for _, batch in stage.rounds) in range(100, 103)
    assert sum(long in batch for _, batch in stage.rounds) == 1


# ---- batches


def test_ten_thousand_leases_cost_five_rounds_a_period(stage: Stage) -> None:
    leases = {stage.keep(f"k{i}") for i in range(10_000)}
    stage.tick_for(5 * PERIOD + 1)
    assert len(stage.rounds) == 25
    assert all(len(batch) == BATCH for _, batch in stage.rounds)
    for begin in range(0, 25, 5):
        period = stage.rounds[begin : begin + 5]
        assert {lease for _, batch in period for lease in batch} == leases


def test_leases_of_one_deadline_are_renewed_in_their_order(stage: Stage) -> None:
    leases = [stage.keep(f"k{number}") for number in range(100)]
    stage.tick_for(PERIOD + 1)
    assert stage.rounds[0][1] == leases


def test_leases_acquired_one_by_one_are_renewed_in_few_batches(stage: Stage) -> None:
    chance = random.Random(1)
    for number in range(1000):
        stage.keep(f"k{number}")
        stage.tick_for(chance.uniform(0, 2 * PERIOD / 1000))
    stage.tick_for(2 * PERIOD)
    stage.rounds.clear()
    stage.tick_for(PERIOD)
    assert len(stage.rounds) <= 5, "one for each twelfth of the ttl in a period, and a remainder"
    assert sum(len(batch) for _, batch in stage.rounds) == 1000


def test_a_lease_that_is_not_due_soon_is_left_out_of_the_batch(stage: Stage) -> None:
    first = stage.keep("first")
    stage.clock.move(PERIOD / 2)
    second = stage.keep("second")
    stage.tick_for(PERIOD / 2 + 0.01)
    assert [batch for _, batch in stage.rounds] == [[first]]
    assert set(stage.keeper.kept()) == {first, second}


# ---- failure and loss


def test_a_failed_extension_is_repeated_until_it_succeeds(stage: Stage) -> None:
    lease = stage.keep()
    stage.answer = stage.refuse
    stage.tick_for(2 * PERIOD)
    assert len(stage.rounds) > 2
    stage.answer = stage.renew
    stage.tick_for(5 * PERIOD)
    assert not lease.lost
    assert not stage.lost


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_ends_no_other_lease(
    stage: Stage, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(lease: Lease) -> None:
        told.append(lease.key)
        raise error

    other = stage.keep("other")
    for key in ("a", "b"):
        stage.keeper.keep(stage.lease(key, ttl=3), on_lost=fail)
    stage.answer = lambda batch: stage.renew([one for one in batch if one is other])
    stage.tick_for(10 * TTL)
    assert sorted(told) == ["a", "b"]
    assert not other.lost
    assert stage.rounds[-1][1] == [other]
    lines = sorted(record.getMessage() for record in caplog.records)
    assert lines == [f"loss not reported to the holder key={key} holder=" for key in ("a", "b")]


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_report_of_an_extension_may_raise_anything(
    stage: Stage, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(lease: Lease) -> None:
        told.append(lease.key)
        raise error

    for key in ("a", "b"):
        stage.keeper.keep(stage.lease(key), on_extended=fail)
    stage.tick_for(2 * PERIOD + 1)
    assert sorted(told) == ["a", "a", "b", "b"]
    assert len(stage.rounds) == 2
    assert len(caplog.records) == 4


def test_a_holder_whose_event_can_not_be_told_is_called_back(stage: Stage) -> None:
    told: list[Lease] = []

    def lose(lease: Lease) -> None:
        raise SystemExit

    stage.keeper = Keeper(stage.clock, stage.extend, lose)
    stage.answer = stage.refuse
    lease = stage.lease()
    stage.keeper.keep(lease, on_lost=told.append)
    stage.tick_for(2 * TTL)
    assert told == [lease]


def test_a_keeper_stopped_by_a_callback_extends_nothing(stage: Stage) -> None:
    """But each lease that is lost by then is reported."""
    told: list[str] = []

    def stop(lease: Lease) -> None:
        told.append(lease.key)
        stage.keeper.stop()

    for key in ("a", "b"):
        stage.keeper.keep(stage.lease(key, ttl=3), on_lost=stop)
    stage.keep("other", ttl=4)
    stage.clock.move(3)
    stage.keeper.tick()
    assert told == ["a", "b"]
    assert not stage.rounds
    assert stage.keeper.kept() == []


def test_a_strike_between_two_reports_of_loss_loses_none(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for key in ("a", "b"):
        stage.keeper.keep(stage.lease(key), on_lost=lambda lease: told.append(lease.key))
    run = dispatch.run_in_origin_thread

    def run_and_strike(*args: Any) -> None:
        run(*args)
        monkeypatch.setattr(dispatch, "run_in_origin_thread", run)
        raise ZeroDivisionError

    monkeypatch.setattr(dispatch, "run_in_origin_thread", run_and_strike)
    stage.clock.move(TTL)
    with pytest.raises(ZeroDivisionError):
        stage.keeper.tick()
    stage.keeper.tick()
    assert told == ["a", "b"]


def test_a_renewal_is_retried_until_the_deadline_and_no_longer(stage: Stage) -> None:
    lease = stage.keep()
    deadline = lease.deadline
    stage.answer = stage.refuse
    stage.tick_for(TTL)
    assert stage.lost == [lease]
    times = [time for time, _ in stage.rounds]
    assert times[0] == pytest.approx(1000 + PERIOD)
    assert len(times) >= 10
    assert deadline - 0.1 < times[-1] < deadline, "the last try is just before the end"
    assert len(times) < 50, "and it is not asked all the time"
    tries = len(times)
    stage.answer = stage.renew
    stage.tick_for(10 * TTL)
    assert len(stage.rounds) == tries
    assert stage.lost == [lease]
    assert stage.keeper.kept() == []


def test_a_lease_is_lost_at_its_deadline_not_before(stage: Stage) -> None:
    lease = stage.keep()
    stage.answer = stage.refuse
    stage.tick_for(lease.deadline - stage.clock.now() - 0.001)
    assert not stage.lost
    stage.tick_for(0.002)
    assert stage.lost == [lease]


def test_a_lease_that_was_told_to_be_lost_stays_lost(stage: Stage) -> None:
    lease = stage.keep()
    stage.clock.move(TTL + 1)
    stage.keeper.tick()
    assert stage.lost == [lease]
    lease.deadline = stage.clock.now() + TTL  # an extension that was under way
    assert lease.lost


def test_a_keeper_that_slept_past_the_deadline_does_not_extend(stage: Stage) -> None:
    lease = stage.keep()
    stage.clock.move(TTL + 1)  # a suspended machine
    stage.keeper.tick()
    assert not stage.rounds
    assert stage.lost == [lease]


def test_a_loss_is_seen_at_once_when_the_nodes_say_so(stage: Stage) -> None:
    lease, other = stage.keep("k"), stage.keep("other")

    def move_on(leases: Sequence[Lease]) -> None:
        stage.renew(leases)
        lease.backing.is_lost = True

    stage.answer = move_on
    stage.tick_for(PERIOD)
    assert stage.lost == [lease]
    stage.answer = stage.renew
    stage.tick_for(10 * PERIOD)
    assert stage.lost == [lease]
    assert stage.keeper.kept() == [other]


def test_a_lease_that_can_not_be_renewed_harms_no_other(stage: Stage) -> None:
    leases = [stage.keep(f"k{i}") for i in range(10)]
    stage.answer = lambda batch: stage.renew([one for one in batch if one is not leases[3]])
    stage.tick_for(10 * TTL)
    assert stage.lost == [leases[3]]
    assert stage.keeper.kept() == leases[:3] + leases[4:]
    assert not any(lease.lost for lease in stage.keeper.kept())


def test_everyone_is_told_of_a_loss_though_one_raises(stage: Stage) -> None:
    told = []

    def lose(lease: Lease) -> None:
        told.append(lease)
        if len(told) == 1:
            raise ZeroDivisionError

    stage.keeper = Keeper(stage.clock, stage.refuse, lose)
    leases = [stage.keep(f"k{i}") for i in range(3)]
    stage.clock.move(TTL + 1)
    for _ in range(3):
        try:
            stage.keeper.tick()
        except ZeroDivisionError:
            continue
    assert told == leases


def test_a_lease_that_is_over_when_it_comes_is_lost(stage: Stage) -> None:
    lease = stage.lease()
    stage.clock.move(TTL + 1)
    stage.keeper.keep(lease)
    stage.keeper.tick()
    assert stage.lost == [lease]
    assert not stage.rounds


# ---- the end of keeping


def test_a_lease_that_is_hurried_is_extended_at_the_next_tick(stage: Stage) -> None:
    lease = stage.keep()
    stage.keeper.hurry(lease)
    stage.keeper.tick()
    assert stage.rounds == [(1000.0, [lease])]


def test_a_lease_that_is_not_kept_is_not_hurried(stage: Stage) -> None:
    stage.keeper.hurry(stage.lease())
    stage.keeper.tick()
    assert not stage.rounds


def test_max_hold_ends_the_renewal_and_then_the_lease(stage: Stage) -> None:
    lease = stage.keep(max_hold=100)
    stage.tick_for(100)
    last = stage.rounds[-1][0]
    assert 1100 - PERIOD <= last < 1100
    assert not stage.lost
    stage.tick_for(10 * TTL)
    assert stage.rounds[-1][0] == last
    assert stage.lost == [lease]
    assert lease.deadline == pytest.approx(last + TTL, abs=1)


def test_a_lease_is_not_extended_while_it_may_not_be_held_longer(stage: Stage) -> None:
    lease = stage.keep(max_hold=1)
    stage.tick_for(2 * TTL)
    assert not stage.rounds
    assert stage.lost == [lease]


def test_a_forgotten_lease_is_neither_extended_nor_lost(stage: Stage) -> None:
    lease, other = stage.keep(), stage.keep("other")
    stage.keeper.forget(lease)
    stage.keeper.forget(lease)
    stage.tick_for(10 * TTL)
    assert all(batch == [other] for _, batch in stage.rounds)
    assert not stage.lost


@pytest.mark.parametrize("succeeds", [True, False])
def test_a_lease_forgotten_during_its_extension_stays_forgotten(
    stage: Stage, succeeds: bool
) -> None:
    lease = stage.keep()

    def be_overtaken(leases: Sequence[Lease]) -> None:
        stage.keeper.forget(lease)
        if succeeds:
            stage.renew(leases)

    stage.answer = be_overtaken
    stage.tick_for(10 * TTL)
    assert len(stage.rounds) == 1
    assert not stage.lost
    assert stage.keeper.kept() == []


def test_a_lease_released_during_its_extension_is_not_lost(stage: Stage) -> None:
    lease = stage.keep()

    def be_overtaken(leases: Sequence[Lease]) -> None:
        lease.is_released = True

    stage.answer = be_overtaken
    stage.tick_for(10 * TTL)
    assert len(stage.rounds) == 1
    assert not stage.lost
    assert stage.keeper.kept() == []


def test_a_lease_that_comes_during_an_extension_is_kept(stage: Stage) -> None:
    stage.keep()
    newcomers: list[Lease] = []

    def welcome(leases: Sequence[Lease]) -> None:
        stage.renew(leases)
        if not newcomers:
            newcomers.append(stage.keep("new", 3))

    stage.answer = welcome
    stage.tick_for(3 * TTL)
    assert not stage.lost
    assert sum(newcomers[0] in batch for _, batch in stage.rounds) > 50


# ---- how long an extension may take


def test_an_extension_may_take_a_quarter_of_what_is_left(stage: Stage) -> None:
    lease = stage.keep()
    stage.tick_for(PERIOD)
    assert stage.times_given == [pytest.approx((lease.ttl_ms / 1000 - PERIOD) / 4, abs=0.1)]


def test_no_extension_outlasts_another_lease_s_last_chance(stage: Stage) -> None:
    stage.keep("long", 300)
    stage.clock.move(99.5)
    short = stage.keep("short", 3)
    # The long one is due first. A third of its ttl before its end, the short one is due for long.
    last_chance = short.deadline - 1
    stage.tick_for(0.5)
    assert stage.times_given == [pytest.approx(last_chance - 1100)]


def test_no_extension_outlasts_a_lease_that_is_about_to_end(stage: Stage) -> None:
    stage.keep("long", 300)
    stage.clock.move(98)
    ending = stage.keep("ending", 3, max_hold=0)
    stage.tick_for(2.0)
    assert stage.times_given == [pytest.approx(ending.deadline - 1100)]


def test_who_lost_is_told_before_others_are_extended(stage: Stage) -> None:
    lost = stage.keep("lost", 3)
    for number in range(BATCH + 1):
        stage.keep(f"k{number}", 8)

    def hang(leases: Sequence[Lease]) -> None:
        assert stage.clock.now() < lost.deadline or stage.lost
        stage.clock.move(stage.times_given[-1] + 0.05)

    stage.answer = hang
    stage.tick_for(2.5)
    assert stage.lost == []
    stage.tick_for(0.6)
    assert stage.lost == [lost]


# ---- releases


def test_the_keeper_comes_when_a_release_is_due(stage: Stage) -> None:
    made = stage.released()
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0))
    assert stage.keeper.tick() == 1005.0
    assert made == []
    stage.clock.move(5.0)
    stage.keeper.tick()
    assert made == [(1005.0, "owner")]


def test_a_settled_release_costs_no_tick(stage: Stage) -> None:
    made = stage.released()
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0))
    assert stage.keeper.settle("owner")
    assert stage.keeper.tick() == 1010.0, "that it may find out whether it is idle"
    assert made == []


def test_a_release_that_is_finished_now_is_made_at_once(stage: Stage) -> None:
    made = stage.released()
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0))
    stage.keeper.release_now("owner")
    stage.keeper.tick()
    assert made == [(1000.0, "owner")]
    assert not stage.keeper.settle("owner"), "its caller is not responsible any more"


def test_what_is_being_released_is_not_renewed(stage: Stage) -> None:
    stage.released()
    lease, other = stage.keep("k"), stage.keep("other")
    stage.keeper.register_cleanup(ReleaseRequest("k", lease.owner, due=1005.0, ends_at=1060.0))
    stage.tick_for(3 * PERIOD)
    assert stage.rounds
    assert all(batch == [other] for _, batch in stage.rounds)
    assert stage.lost == []


class Holder:
    """Object that would release a lease."""

    def extend(self, lease: Lease) -> None:
        pass

    release = extend


def test_a_lease_whose_holder_is_gone_is_released_and_lost(stage: Stage) -> None:
    made, holder, told = stage.released(), Holder(), list[Lease]()
    lease = stage.lease()
    stage.keeper.keep(lease, weakref.ref(holder), on_lost=told.append)
    stage.tick_for(2 * PERIOD)
    assert made == []
    assert stage.lost == []
    del holder
    stage.tick_for(2 * PERIOD)
    assert {owner for _, owner in made} == {lease.owner}
    assert stage.keeper.kept() == []
    assert lease.lost
    assert lease.backing.lost_because == "nothing refers to its block any more, so it was released"
    assert stage.lost == told == [lease]


def test_a_lease_released_as_its_holder_goes_is_not_lost(stage: Stage) -> None:
    made, lease = stage.released(), stage.lease()

    def gone() -> None:
        stage.keeper.forget(lease)  # by a thread that releases it

    stage.keeper.keep(lease, cast("weakref.ref[object]", gone))
    stage.tick_for(PERIOD)
    assert made == []
    assert stage.lost == []


def test_a_loss_that_the_holder_found_is_reported_at_the_next_tick(stage: Stage) -> None:
    lease, told = stage.lease(max_hold=math.inf), list[Lease]()
    lease.backing.lock = Holder()
    stage.keeper.keep(lease, on_lost=told.append)
    for _ in range(2):
        stage.keeper.lose(lease)
    assert stage.lost == told == [], "on the keeper's thread alone"
    assert stage.keeper._has_work()
    stage.keeper.tick()
    stage.keeper.tick()
    assert stage.lost == told == [lease]
    assert not stage.keeper._has_work()


def test_a_loss_found_twice_is_reported_once(stage: Stage) -> None:
    """By the keeper, and at the same time by the thread of the holder."""
    lease = stage.keep(max_hold=math.inf)
    lease.backing.lock = Holder()
    stage.clock.move(TTL)
    stage.keeper.tick()
    stage.keeper.lose(lease)
    stage.keeper.tick()
    assert stage.lost == [lease]


def test_a_loss_that_the_run_of_a_task_found_waits_for_its_renewal(stage: Stage) -> None:
    """The report would interrupt the body, which may be clearing up."""
    lease = stage.keep()
    stage.keeper.lose(lease)
    stage.keeper.tick()
    assert stage.lost == []
    assert stage.keeper.kept() == [lease]
    stage.tick_for(PERIOD + 1)
    assert stage.lost == [lease]


def test_the_loss_of_a_forgotten_lease_is_reported(stage: Stage) -> None:
    lease = stage.keep()
    stage.keeper.lose(lease, stage.keeper.forget(lease))
    stage.keeper.tick()
    assert stage.lost == [lease]


def test_a_forgotten_lease_that_another_process_renews_is_not_reported(stage: Stage) -> None:
    lease, told = stage.lease(), list[Lease]()
    stage.keeper.watch(lease, told.append)
    stage.keeper.lose(lease, stage.keeper.forget(lease))
    stage.keeper.tick()
    assert told == []


def test_a_loss_is_reported_though_no_thread_can_be_started_now(stage: Stage) -> None:
    lease = stage.keep()

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    stage.keeper._thread.start = refuse  # type: ignore[method-assign]
    stage.keeper.lose(lease, stage.keeper.forget(lease))
    stage.keeper.tick()
    assert stage.lost == [lease]


def test_a_lease_that_is_taken_over_is_released_with_all_it_holds(stage: Stage) -> None:
    made: list[ReleaseRequest] = []
    lease = stage.lease()
    lease.superseded = "a reservation"

    def release(releases: Sequence[ReleaseRequest], timeout: float) -> list[bool]:
        made.extend(releases)
        return [True] * len(releases)

    keeper = Keeper(stage.clock, stage.extend, stage.lost.append, release=release)
    keeper.keep(lease)
    keeper.take_over(lease)
    assert keeper.kept() == []
    keeper.tick()
    [request] = made
    assert (request.key, request.owner, request.token) == (lease.key, lease.owner, lease.token)
    assert request.superseded == "a reservation"
    assert request.ends_at == pytest.approx(1000 + TTL, rel=0, abs=1e-6)


def test_a_release_may_take_until_the_next_extension(stage: Stage) -> None:
    given: list[float] = []

    def release(releases: Sequence[ReleaseRequest], timeout: float) -> list[bool]:
        given.append(timeout)
        return [True] * len(releases)

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, release=release)
    stage.keep()
    stage.clock.move(PERIOD - 0.25)
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=0.0, ends_at=1e9))
    stage.keeper.tick()
    assert given == [pytest.approx(0.25)]


def test_a_lease_is_taken_over_though_no_thread_can_be_started(stage: Stage) -> None:
    made = stage.released()
    lease = stage.keep()

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    stage.keeper._thread.start = refuse  # type: ignore[method-assign]
    stage.keeper.take_over(lease)
    stage.keeper.tick()
    assert made == [(1000.0, lease.owner)]


def test_a_lease_forgotten_during_its_extension_is_not_reported(stage: Stage) -> None:
    lease = stage.keep()

    def answer(leases: Sequence[Lease]) -> None:
        stage.keeper.forget(lease)
        lease.backing.is_lost = True

    stage.answer = answer
    stage.tick_for(PERIOD + 1)
    assert len(stage.rounds) == 1
    assert not stage.lost


def test_without_leases_nothing_is_waited_for() -> None:
    assert patience_for([], 1000.0) == 0.0


def test_a_release_that_no_thread_can_make_is_not_left_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: object, name: str) -> None:
        raise RuntimeError("can't start new thread")

    in_this_thread(monkeypatch, dispatch, "start_thread", refuse)
    keeper = stage.keeper
    with pytest.raises(RuntimeError):
        keeper.register_cleanup(ReleaseRequest("k", "me", due=1001, ends_at=1030))
    assert not keeper.settle("me")
    assert not keeper._has_work()


def test_a_new_keeper_has_no_work(stage: Stage) -> None:
    assert not stage.keeper._has_work()


def test_a_release_that_fails_keeps_no_lease_from_its_renewal(stage: Stage) -> None:
    def fail(releases: Sequence[ReleaseRequest], timeout: float) -> list[bool]:
        raise ZeroDivisionError

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, release=fail)
    stage.keep()
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=0.0, ends_at=9e9))
    for _ in range(100):
        with contextlib.suppress(ZeroDivisionError):
            stage.keeper.tick()
        stage.clock.move(1.0)
    assert stage.lost == []
    assert len(stage.rounds) > 5


def test_the_last_lease_may_be_forgotten_while_the_next_extension_is_looked_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, which releases it."""

    class Forgotten(dict[Lease, Any]):
        def values(self) -> Any:
            self.clear()
            return super().values()

    lease = stage.keep()
    monkeypatch.setattr(stage.keeper, "_kept", Forgotten(stage.keeper._kept))
    assert stage.keeper._next_due_at() == math.inf
    assert lease not in stage.keeper.kept()


# --- leases that another process renews -----------------------------------------------------------


def test_a_watched_lease_is_never_extended_and_reported_once_at_its_end(stage: Stage) -> None:
    lease, told = stage.lease(), list[Lease]()
    stage.keeper.watch(lease, told.append)
    stage.tick_for(TTL * 0.9)
    assert not stage.rounds
    assert not told
    assert not stage.keeper.kept()
    assert stage.keeper.tick() <= lease.deadline
    stage.tick_for(10 * TTL)
    assert told == [lease]
    assert stage.lost == [], "its process tells of it"
    lease.deadline += TTL
    assert lease.lost, "for good"


def test_a_watched_lease_that_is_renewed_elsewhere_is_not_reported(stage: Stage) -> None:
    lease, told = stage.lease(), list[Lease]()

    def read_row(lease: Lease) -> None:
        lease.deadline = stage.clock.now() + 1.0

    lease.backing.refresh = read_row
    stage.keeper.watch(lease, told.append)
    stage.tick_for(10 * TTL)
    stage.keeper.forget(lease)
    lease.backing.refresh = None
    stage.tick_for(10 * TTL)
    assert told == []


def test_a_report_of_a_watched_lease_may_raise_anything(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(lease: Lease) -> None:
        told.append(lease.key)
        raise SystemExit

    for key in ("a", "b"):
        stage.keeper.watch(stage.lease(key), fail)
    stage.tick_for(2 * TTL)
    assert told == ["a", "b"]
    assert len(caplog.records) == 2


def test_no_extension_outlasts_a_watched_lease(stage: Stage) -> None:
    stage.keeper.watch(stage.lease("watched", ttl=PERIOD + 0.5), lambda _: None)
    stage.keep("kept")
    stage.tick_for(PERIOD)
    assert stage.times_given == [pytest.approx(0.4, abs=0.1)]


@pytest.mark.parametrize("end", [Keeper.forget_all, Keeper.stop])
def test_a_keeper_without_its_connections_prepares_itself_again(
    stage: Stage, end: Callable[[Keeper], None]
) -> None:
    prepared: list[str] = []
    stage.keeper = Keeper(
        stage.clock, stage.extend, stage.lost.append, lambda _: prepared.append("now")
    )
    for _ in range(2):
        stage.keep()
        stage.keeper.tick()
        stage.keeper.tick()
        end(stage.keeper)
    assert len(prepared) == 2


def test_a_watched_lease_needs_no_connections(stage: Stage) -> None:
    told: list[bool | str] = []

    def tidy(has_leases: bool) -> bool:  # as the keeper calls it
        told.append(has_leases)
        return False

    stage.keeper = Keeper(
        stage.clock, stage.extend, stage.lost.append, lambda _: told.append("prepared"), tidy=tidy
    )
    stage.keeper.watch(stage.lease(), lambda _: None)
    stage.keeper.tick()
    assert told == [False]
    assert stage.keeper._has_work()


def test_after_a_fork_the_parent_s_leases_are_the_parent_s(stage: Stage) -> None:
    stage.keep("parent")
    stage.keeper.forget_all()
    assert stage.keeper.kept() == []
    lease = stage.keep("child")
    assert len(stage.threads) == 2, "threads do not survive a fork"
    stage.tick_for(PERIOD)
    assert [batch for _, batch in stage.rounds] == [[lease]]


def test_after_a_fork_the_parent_s_releases_are_the_parent_s(stage: Stage) -> None:
    made = stage.released()
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0))
    stage.keeper.forget_all()
    stage.clock.move(10.0)
    stage.keeper.tick()
    assert made == []


@pytest.mark.parametrize(
    "urge",
    [
        lambda keeper, lease: keeper.hurry(lease),
        lambda keeper, lease: keeper.take_over(lease),
        lambda keeper, lease: keeper.release_now(lease.owner),
        lambda keeper, lease: keeper.lose(lease, keeper.forget(lease)),
    ],
    ids=["hurry", "take_over", "release_now", "lose"],
)
def test_the_thread_is_woken_for_what_is_due_now(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, urge: Callable[[Keeper, Lease], object]
) -> None:
    lease = stage.keep()
    stage.keeper.register_cleanup(ReleaseRequest("k", lease.owner, due=1005.0, ends_at=1060.0))
    woken: list[tuple[float, ...]] = []
    monkeypatch.setattr(stage.keeper._thread, "wake", lambda *due_at: woken.append(due_at))
    urge(stage.keeper, lease)
    assert woken == [()]


def test_a_lease_that_is_taken_over_starts_the_thread(stage: Stage) -> None:
    stage.keeper.take_over(stage.lease())
    assert len(stage.threads) == 1


def test_a_keeper_with_a_release_has_work(stage: Stage) -> None:
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0))
    assert stage.keeper._has_work()
    stage.keeper.settle("owner")
    assert not stage.keeper._has_work()


def test_no_time_is_left_after_a_last_chance(stage: Stage) -> None:
    lease = stage.keep()
    stage.clock.move(TTL)
    assert stage.keeper._patience([], stage.clock.now()) == 0.0
    assert patience_for([lease], stage.clock.now()) == 0.0


def test_a_release_beside_an_overdue_extension_gets_no_time(stage: Stage) -> None:
    given: list[float] = []

    def release(releases: Sequence[ReleaseRequest], timeout: float) -> list[bool]:
        given.append(timeout)
        return [True] * len(releases)

    stage.keeper = Keeper(stage.clock, stage.extend, stage.lost.append, release=release)
    stage.keep()
    stage.clock.move(PERIOD + 0.25)
    stage.keeper.register_cleanup(ReleaseRequest("k", "owner", due=0.0, ends_at=1e9))
    stage.keeper.tick()
    assert given == [0.0]


def test_a_loss_that_nobody_wants_to_hear_of_is_no_error(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    lease = stage.keep()
    stage.clock.move(TTL)
    stage.keeper.tick()
    assert stage.lost == [lease]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("left", "pause"), [(4.0, 1.0), (0.1, 0.025), (0.012, 0.005), (0.001, 0.001)]
)
def test_retries_come_closer_down_to_five_milliseconds(
    stage: Stage, left: float, pause: float
) -> None:
    lease = stage.lease()
    now = lease.deadline - left
    assert due_at(lease, now) - now == pytest.approx(pause)


# ---- the end of the process


class Exit:
    """The wait at the end of a process, in the stage's time: the keeper works while it sleeps."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        monkeypatch.setattr(keeper, "_keepers", [stage.keeper])
        monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=stage.clock.now))
        monkeypatch.setattr(keeper, "native", SimpleNamespace(original=lambda *_: self.sleep))

    def sleep(self, seconds: float) -> None:
        """Let the keeper's thread, which was woken, do its work."""
        self.stage.keeper.tick()
        self.stage.clock.move(seconds)

    def takes(self) -> float:
        """Return how long the process waits, seconds."""
        began = self.stage.clock.now()
        keeper._release_at_exit()
        return self.stage.clock.now() - began


def test_a_process_waits_at_its_end_for_releases(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of callers that were interrupted, whether or not anybody has told the keeper."""
    made = stage.released()
    stage.keeper.register_cleanup(ReleaseRequest("k", "struck", due=1e9, ends_at=2e9))
    assert Exit(stage, monkeypatch).takes() <= 0.1
    assert [owner for _, owner in made] == ["struck"]


def test_a_process_waits_at_its_end_for_blocks_gone_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stage.released()
    stage.keeper.keep(stage.lease("gone"), weakref.ref(type("Holder", (), {})()))
    assert Exit(stage, monkeypatch).takes() <= 0.1
    assert [owner for _, owner in made] == ["gone"]


def test_a_process_waits_a_second_for_nodes_that_are_away(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.keeper = Keeper(
        stage.clock, stage.extend, stage.lost.append, release=lambda made, _: [False] * len(made)
    )
    stage.keeper.register_cleanup(ReleaseRequest("k", "struck", due=1e9, ends_at=2e9))
    assert 1.0 <= Exit(stage, monkeypatch).takes() <= 1.1


def test_a_process_without_releases_ends_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.keep()
    assert Exit(stage, monkeypatch).takes() == 0.0
