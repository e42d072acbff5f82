"""Which channel is lent, and what becomes of it afterwards."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import Any

import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.transport import pool as module
from celery_redlock.redlock.transport.channel import Channel as RealChannel
from celery_redlock.redlock.transport.pool import Loan, Pool
from tests.support.eventually import eventually

MOST = 4
PATIENCE = 60.0


class Channel(RealChannel):
    """A channel without connections."""

    def __init__(self) -> None:
        self.is_closed = False
        self.idle_for = 0.0
        self.patience: list[float | None] = []
        self.needs_votes: list[bool] = []
        self.why_unconnected = ""

    def prepare(self, patience: float | None = None, *, needs_votes: bool = True) -> None:
        self.patience.append(patience)
        self.needs_votes.append(needs_votes)

    def is_unused(self, seconds: float) -> bool:
        return self.idle_for >= seconds

    def stay_unconnected(self, why: str) -> None:
        self.why_unconnected = why

    def close(self) -> None:
        self.is_closed = True


class Stage:
    """A pool, with the channels it made; `pauses` are the waits for a certain channel."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.pauses: list[float] = []
        self.pool = Pool(self.make, MOST, PATIENCE, self.pauses.append)

    def make(self) -> Channel:
        self.made.append(Channel())
        made: Channel = self.made[-1]
        return made

    def lend(self, count: int) -> list[Any]:
        """Lend so many at a time, and take them back in this order."""
        loans = [self.pool.channel() for _ in range(count)]
        channels = [loan.__enter__() for loan in loans]
        for loan in loans:
            loan.__exit__(None)
        return channels


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_channel_used_last_is_lent_first(stage: Stage) -> None:
    first, second = stage.lend(2)
    with stage.pool.channel() as one, stage.pool.channel() as other:
        assert (one, other) == (second, first)
    assert len(stage.made) == 2


def test_a_preferred_channel_is_lent_if_it_is_idle(stage: Stage) -> None:
    first, second = stage.lend(2)
    with stage.pool.channel(first) as one:
        assert one is first
        with stage.pool.channel(first) as other:
            assert other is second
    assert stage.pauses == []


def test_a_needed_channel_is_waited_for_until_it_is_not_needed(stage: Stage) -> None:
    first, second = stage.lend(2)
    with stage.pool.channel(first):
        needed = iter([True, True, False])
        with stage.pool.channel(first, lambda: next(needed)) as other:
            assert other is second
    assert stage.pauses == [0.001] * 2


def test_a_channel_is_prepared_with_the_patience_of_its_caller(stage: Stage) -> None:
    stage.pool.prepare()
    stage.pool.prepare(0.5)
    with stage.pool.channel(patience=0.0, needs_votes=False) as channel:
        assert isinstance(channel, Channel)
        assert channel.patience == [None, 0.5, 0.0]
        assert channel.needs_votes == [True, True, False]


def test_a_channel_that_can_not_be_prepared_is_closed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Channel, patience: float | None = None, *, needs_votes: bool = True) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Channel, "prepare", fail)
    with pytest.raises(KeyboardInterrupt):
        stage.pool.prepare()
    assert [channel.is_closed for channel in stage.made] == [True]
    assert not stage.pool.has_channels()


@pytest.mark.parametrize(
    ("error", "is_closed"), [(ConfigurationError, False), (KeyboardInterrupt, True)]
)
def test_only_an_error_between_rounds_keeps_the_channel(
    stage: Stage, error: type[BaseException], is_closed: bool
) -> None:
    with pytest.raises(error), stage.pool.channel():
        raise error("now")
    assert stage.made[0].is_closed is is_closed
    with stage.pool.channel() as channel:
        assert (channel is stage.made[0]) is not is_closed


def test_idle_channels_unused_for_long_are_closed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, used, unused, lent = stage.lend(MOST)
    for each in (taken, unused, lent):
        each.idle_for = 60.0

    def is_taken_now(seconds: float) -> bool:
        stage.pool.channel(taken).__enter__()
        return True

    monkeypatch.setattr(taken, "is_unused", is_taken_now)
    with stage.pool.channel(lent):
        stage.pool.close_unused(60.0)
    assert [each.is_closed for each in stage.made] == [False, False, True, False]
    assert stage.pool._idle == [used, lent]


# ---- all are in use


def _is_as_long(several: Any, count: int) -> bool:
    return len(several) == count


@contextmanager
def all_lent(stage: Stage) -> Iterator[list[Loan]]:
    loans = [stage.pool.channel() for _ in range(MOST)]
    for loan in loans:
        loan.__enter__()
    yield loans


@contextmanager
def waiting(stage: Stage, count: int = 1, looks_after: float = PATIENCE / 2) -> Iterator[list[Any]]:
    """Let threads wait, one after the other; yield who gets which channel, in order."""
    got: list[Any] = []
    waiters: set[module._Waiter] = set()
    wait = module._Waiter.wait

    def borrow(number: int) -> None:
        got.append((number, stage.pool.channel().__enter__()))

    def noted_wait(waiter: module._Waiter, seconds: float) -> None:
        waiters.add(waiter)
        wait(waiter, seconds)

    threads = [Thread(target=borrow, args=(number,)) for number in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WAKE_S", looks_after)
        patch.setattr(module._Waiter, "wait", noted_wait)
        for number, thread in enumerate(threads, 1):
            thread.start()
            eventually(partial(_is_as_long, waiters, number))
        yield got
        for thread in threads:
            thread.join()


def test_a_thread_is_woken_when_a_channel_is_returned(stage: Stage) -> None:
    with all_lent(stage) as loans, waiting(stage) as got:
        loans[1].__exit__(None)
        eventually(lambda: got)
    assert got == [(0, stage.made[1])]
    assert len(stage.made) == MOST


def test_a_channel_goes_to_the_thread_that_has_waited_longest(stage: Stage) -> None:
    with all_lent(stage) as loans, waiting(stage, count=3) as got:
        for number, loan in enumerate(loans[:3], 1):
            loan.__exit__(None)
            assert len(stage.pool._waiting) == 3 - number, "the others keep their places"
            eventually(partial(_is_as_long, got, number))
    assert got == [*enumerate(stage.made[:3])]


def test_a_release_waits_before_all_acquisitions(stage: Stage) -> None:
    released: list[Any] = []

    def release() -> None:
        released.append(stage.pool.channel(goes_first=True).__enter__())

    with all_lent(stage) as loans, waiting(stage, count=2) as got:
        thread = Thread(target=release)
        thread.start()
        eventually(partial(_is_as_long, stage.pool._waiting, 3))
        loans[0].__exit__(None)
        thread.join()
        for number, loan in enumerate(loans[1:3], 1):
            loan.__exit__(None)
            eventually(partial(_is_as_long, got, number))
    assert released == stage.made[:1]
    assert got == [*enumerate(stage.made[1:3])]


def test_a_waiting_thread_gets_a_new_channel_for_a_closed_one(stage: Stage) -> None:
    with all_lent(stage) as loans, waiting(stage) as got:
        loans[0].__exit__(KeyboardInterrupt)
        eventually(lambda: got)
    assert got == [(0, stage.made[MOST])]


def test_a_waiting_thread_gets_a_new_channel_for_a_lost_one(stage: Stage) -> None:
    """An interrupt struck between the end of the round and the return of the channel."""
    with all_lent(stage) as loans, waiting(stage, looks_after=0.01) as got:
        loans.pop(0)
        stage.made.pop(0)
        eventually(lambda: got)
    assert got == [(0, stage.made[MOST - 1])]


def test_a_thread_out_of_patience_gets_an_unconnected_channel(stage: Stage) -> None:
    with all_lent(stage), stage.pool.channel(patience=0.0) as channel:
        assert isinstance(channel, Channel)
        assert channel.why_unconnected == f"all {MOST} connections of this process are in use"
    assert channel not in stage.pool._idle


def test_no_thread_waits_beyond_the_pool_s_own_patience(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module._Waiter, "wait", lambda _, seconds: waits.append(seconds))
    with all_lent(stage), stage.pool.channel(patience=math.inf):
        assert sum(waits) == pytest.approx(PATIENCE)
        assert max(waits) == 0.05
        assert not stage.pool._waiting


def test_a_thread_that_is_struck_while_it_waits_keeps_no_channel(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with all_lent(stage) as loans:

        def strike(self: object, seconds: float) -> None:
            loans[0].__exit__(None)  # it is given to this thread
            raise KeyboardInterrupt

        monkeypatch.setattr(module._Waiter, "wait", strike)
        with pytest.raises(KeyboardInterrupt):
            stage.pool.channel().__enter__()
    assert stage.pool._idle == [stage.made[0]]
    assert not stage.pool._waiting


def test_a_channel_that_nobody_waits_for_any_more_is_idle(stage: Stage) -> None:
    class Leaving(deque[Any]):
        def popleft(self) -> Any:
            self.clear()
            return super().popleft()

    stage.pool._waiting = Leaving([None])
    assert stage.lend(1) == stage.pool._idle


def test_a_channel_beyond_what_others_made_meanwhile_is_not_used(stage: Stage) -> None:
    others: list[RealChannel] = []

    def make() -> Channel:
        others.extend(stage.make() for _ in range(MOST))
        stage.pool._made.update(others)
        return stage.make()

    stage.pool.make = make
    assert stage.pool._idle_or_new() is None
    assert set(stage.pool._made) == set(others)


def test_many_threads_use_no_more_channels_than_the_limit(stage: Stage) -> None:
    used: list[Any] = []

    def use() -> None:
        for _ in range(50):
            with stage.pool.channel() as channel:
                used.append(channel)

    threads = [Thread(target=use) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(used) == 1000
    assert len(set(used)) <= MOST
    assert not any(channel.why_unconnected for channel in used)


def test_a_channel_that_is_lent_at_a_fork_is_not_the_childs(stage: Stage) -> None:
    with stage.pool.channel() as parents:
        stage.pool.forget()
    assert not stage.pool.has_channels()
    with stage.pool.channel() as own:
        assert own is not parents
    assert not parents.is_closed  # type: ignore[attr-defined]


def test_closing_the_pool_closes_idle_channels(stage: Stage) -> None:
    channels = stage.lend(2)
    assert stage.pool.has_channels()
    stage.pool.close()
    assert all(channel.is_closed for channel in channels)
    assert not stage.pool.has_channels()
