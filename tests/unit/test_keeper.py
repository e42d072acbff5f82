"""The keeper, by ticks of a clock that only moves when it is told to."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

import pytest

from celery_redlock.redlock.bell import Bell
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.quorum import validity_ms
from tests.support.fake_clock import FakeClock

TTL = 30.0
PERIOD = TTL / 3


class Stage:
    """A keeper, the nodes it talks to, and those it tells.

    Attributes:
        rounds: When each extension was made, and of which leases.
        lost: Whom it was told to be lost.
        answer: What the nodes do in an extension.
        threads: What the keeper wanted to run on threads.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rounds: list[tuple[float, list[Lease]]] = []
        self.lost: list[Lease] = []
        self.threads: list[Callable[[], None]] = []
        self.answer: Callable[[Sequence[Lease]], None] = self.renew
        self.keeper = Keeper(self.clock, self.extend, self.lost.append, spawn=self.threads.append)

    def extend(self, leases: Sequence[Lease]) -> None:
        self.rounds.append((self.clock.now(), list(leases)))
        self.answer(leases)

    def renew(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            lease.deadline = self.clock.now() + validity_ms(lease.ttl_ms, 0) / 1000

    def refuse(self, leases: Sequence[Lease]) -> None:
        """Do nothing: no quorum."""

    def fail(self, leases: Sequence[Lease]) -> None:
        raise ZeroDivisionError

    def lease(self, key: str = "k", ttl: float = TTL, max_hold: float | None = None) -> Lease:
        now = self.clock.now()
        lease = Lease(key, key, 7, round(ttl * 1000), 0.0, self.clock, acquired_at=now)
        lease.deadline = now + validity_ms(lease.ttl_ms, 0) / 1000
        lease.hold_until = None if max_hold is None else now + max_hold
        return lease

    def keep(self, key: str = "k", ttl: float = TTL, max_hold: float | None = None) -> Lease:
        lease = self.lease(key, ttl, max_hold)
        self.keeper.keep(lease)
        return lease

    def tick_for(self, seconds: float) -> None:
        """Let the keeper come whenever it wants to, for so long."""
        end = self.clock.now() + seconds
        for _ in range(100_000):
            wakes_at = self.keeper.tick()
            if wakes_at > end:
                self.clock.time = end
                return
            self.clock.time = max(wakes_at, self.clock.time)
        pytest.fail("the keeper comes again and again without any time passing")

    def times(self) -> list[float]:
        """When each extension was made, since the start."""
        return [time - 1000.0 for time, _ in self.rounds]


@pytest.fixture
def stage() -> Stage:
    return Stage()


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


def test_a_lease_is_extended_every_third_for_as_long_as_it_is_kept(stage: Stage) -> None:
    lease = stage.keep()
    stage.tick_for(100 * PERIOD + 1)
    assert stage.times() == pytest.approx([PERIOD * (i + 1) for i in range(100)])
    assert not lease.lost
    assert stage.keeper.kept() == [lease]


def test_leases_of_different_ttl_have_their_own_periods(stage: Stage) -> None:
    long, short = stage.keep("long", 300), stage.keep("short", 3)
    stage.tick_for(101)
    assert sum(short in batch for _, batch in stage.rounds) in range(100, 103)
    assert sum(long in batch for _, batch in stage.rounds) == 1


# ---- batches


def test_ten_thousand_leases_cost_one_round_a_period(stage: Stage) -> None:
    leases = {stage.keep(f"k{i}") for i in range(10_000)}
    stage.tick_for(5 * PERIOD + 1)
    assert len(stage.rounds) == 5
    assert all(set(batch) == leases and len(batch) == 10_000 for _, batch in stage.rounds)


def test_leases_that_come_one_after_another_end_up_in_few_batches(stage: Stage) -> None:
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


def test_an_extension_is_tried_until_the_deadline_and_then_never_again(stage: Stage) -> None:
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
        lease.is_lost = True

    stage.answer = move_on
    stage.tick_for(PERIOD)
    assert stage.lost == [lease]
    stage.answer = stage.renew
    stage.tick_for(10 * PERIOD)
    assert stage.lost == [lease]
    assert stage.keeper.kept() == [other]


def test_one_lease_that_can_not_be_renewed_does_not_hurt_the_others(stage: Stage) -> None:
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

    stage.keeper = Keeper(stage.clock, stage.refuse, lose, spawn=stage.threads.append)
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


# ---- the thread


class VirtualBell:
    """Stands in for the wait of the keeper's thread: time passes, nobody waits."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.stage = stage
        self.end = float("inf")

        def wait(bell: Bell, seconds: float) -> bool:
            return self.wait(bell, seconds)

        monkeypatch.setattr(Bell, "wait", wait)

    def wait(self, bell: Bell, seconds: float) -> bool:
        """Let the time pass, and stop the keeper at the end."""
        self.waits += 1
        if bell.clear():
            return True
        self.stage.clock.move(max(0.0, seconds))
        if self.waits > 10_000 or self.stage.clock.now() >= self.end:
            self.stage.keeper.stop()
        return bell.clear()

    def run_for(self, seconds: float) -> None:
        """Run the keeper's newest thread in this one."""
        self.end = self.stage.clock.now() + seconds
        self.stage.threads[-1]()


@pytest.fixture
def bell(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> VirtualBell:
    return VirtualBell(stage, monkeypatch)


def test_the_thread_comes_in_time_and_only_then(stage: Stage, bell: VirtualBell) -> None:
    stage.keep()
    bell.run_for(10 * PERIOD + 1)
    assert stage.times() == pytest.approx([PERIOD * (i + 1) for i in range(10)])
    assert bell.waits <= 12


def test_one_thread_is_enough(stage: Stage) -> None:
    stage.keep("a")
    stage.keep("b")
    assert len(stage.threads) == 1


def test_no_thread_is_started_before_there_is_a_lease(stage: Stage) -> None:
    assert not stage.threads


def test_the_thread_ends_when_there_is_nothing_to_keep_and_another_is_started_then(
    stage: Stage, bell: VirtualBell
) -> None:
    stage.keeper.forget(stage.keep())
    bell.run_for(1e9)
    assert stage.clock.now() < 1000 + 2 * TTL, "it ended by itself"
    lease = stage.keep()
    assert len(stage.threads) == 2
    bell.run_for(PERIOD + 1)
    assert stage.rounds[-1][1] == [lease]


def test_the_thread_survives_an_error_in_an_extension_and_goes_on(
    stage: Stage, bell: VirtualBell, caplog: pytest.LogCaptureFixture
) -> None:
    lease = stage.keep()

    def fail_once(leases: Sequence[Lease]) -> None:
        stage.answer = stage.renew
        raise ZeroDivisionError

    stage.answer = fail_once
    bell.run_for(10 * TTL)
    assert len(stage.rounds) > 25
    assert not lease.lost
    assert [record.getMessage() for record in caplog.records] == ["keeper failed, it goes on"]
    assert caplog.records[0].levelno == logging.ERROR


def test_an_error_that_does_not_end_costs_the_lease_and_neither_time_nor_log(
    stage: Stage, bell: VirtualBell, caplog: pytest.LogCaptureFixture
) -> None:
    lease, deadline = stage.keep(), stage.clock.now() + TTL
    stage.answer = stage.fail
    bell.run_for(10 * TTL)
    assert stage.lost == [lease]
    assert bell.waits < 100
    assert len(caplog.records) < 100
    assert all(time < deadline for time, _ in stage.rounds)


def test_the_thread_survives_an_error_in_telling_of_a_loss(
    stage: Stage, bell: VirtualBell, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(lease: Lease) -> None:
        raise ZeroDivisionError

    stage.keeper = Keeper(stage.clock, stage.extend, lose, spawn=stage.threads.append)
    lost = stage.keep("lost", ttl=3)
    other = stage.keep("other", ttl=TTL)
    stage.answer = lambda batch: stage.renew([one for one in batch if one is other])
    bell.run_for(10 * TTL)
    assert lost.lost
    assert stage.rounds[-1][0] > 1000 + 9 * TTL
    assert len(caplog.records) == 1


def test_a_lease_that_is_due_sooner_wakes_the_thread_and_a_later_one_does_not(
    stage: Stage,
) -> None:
    stage.keep("first", 30)
    bell = stage.keeper._bell
    assert bell is not None
    stage.keep("later", 60)
    later_rang = bell.clear()
    stage.keep("sooner", 3)
    assert [later_rang, bell.clear()] == [False, True]


def test_stop_ends_the_thread_and_keeps_nothing(stage: Stage, bell: VirtualBell) -> None:
    stage.keep()
    stage.keeper.stop()
    bell.run_for(1e9)
    assert bell.waits <= 1
    assert not stage.rounds
    assert not stage.lost


def test_a_thread_that_was_replaced_ends(stage: Stage, bell: VirtualBell) -> None:
    stage.keep("a")
    stage.keeper.stop()
    stage.keep("b")
    old, new = stage.threads
    old()
    assert bell.waits <= 1
    bell.run_for(PERIOD + 1)
    assert new is stage.threads[-1]
    assert len(stage.rounds) == 1


def test_after_a_fork_the_parent_s_leases_are_the_parent_s(stage: Stage) -> None:
    stage.keep("parent")
    stage.keeper.forget_all()
    assert stage.keeper.kept() == []
    lease = stage.keep("child")
    assert len(stage.threads) == 2, "threads do not survive a fork"
    stage.tick_for(PERIOD)
    assert [batch for _, batch in stage.rounds] == [[lease]]


def test_the_thread_prepares_itself_once_before_anything_is_due(
    stage: Stage, bell: VirtualBell
) -> None:
    prepared = []

    def prepare() -> None:
        prepared.append(stage.clock.now())
        raise ZeroDivisionError  # whatever comes of it, the leases are renewed

    stage.keeper = Keeper(
        stage.clock, stage.extend, stage.lost.append, prepare, stage.threads.append
    )
    stage.keep()
    bell.run_for(3 * PERIOD + 1)
    assert prepared == [1000.0]
    assert stage.times() == pytest.approx([PERIOD, 2 * PERIOD, 3 * PERIOD])
