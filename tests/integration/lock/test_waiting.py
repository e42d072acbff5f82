"""Waiting for a lock that others hold, in time that leaps instead of passing."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import pytest

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.acquisition import Acquisition
from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.events import Acquired, Event
from celery_redlock.redlock.lease import task_of
from celery_redlock.redlock.protocol.replies import GrantReply
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.waiters import Waiters
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    expire_on,
    take_on,
)


@pytest.fixture(autouse=True)
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears of releases: a wait is a pause of the clock."""
    monkeypatch.setattr(Waiters, "start", lambda self: False)


class ClockThatDoes(LeapingClock):
    """Does something when it was asked to sleep for the `after`th time."""

    def __init__(self, deed: Callable[[], object], after: int = 1) -> None:
        super().__init__()
        self.deed = deed
        self.after = after

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if len(self.slept) == self.after:
            self.deed()


@pytest.mark.parametrize("wait", [3600, math.inf])
def test_who_waits_gets_the_lock_once_it_is_released(
    five: Servers, redlock: Redlock, new_redlock: NewRedlock, wait: float
) -> None:
    lease = redlock.acquire("k")
    clock = ClockThatDoes(lambda: redlock.release(lease), after=10)
    seen: list[Event] = []
    waiting = new_redlock(five.urls, clock=clock, observers=[seen.append])
    second = waiting.acquire("k", wait=wait)
    assert second.token > lease.token
    [acquired] = [event for event in seen if isinstance(event, Acquired)]
    assert acquired.rounds == 11
    assert acquired.elapsed >= sum(clock.slept)
    assert len(set(clock.slept)) > 1, "with jitter"


def test_who_waits_gets_a_lock_that_another_thread_releases(
    redlock: Redlock, rival: Redlock
) -> None:
    lease = redlock.acquire("k")
    thread = threading.Timer(0.05, redlock.release, [lease])
    thread.start()
    assert rival.acquire("k", wait=60).token > lease.token
    thread.join()


@pytest.mark.parametrize("wait", [None, 0, 10])
def test_nobody_waits_longer_than_asked_for(
    five: Servers, redlock: Redlock, new_redlock: NewRedlock, wait: float | None
) -> None:
    redlock.acquire("k", ttl=60)
    clock = LeapingClock()
    with pytest.raises(LockHeld):
        new_redlock(five.urls, clock=clock).acquire("k", wait=wait)
    assert sum(clock.slept) <= (wait or 0)
    assert bool(clock.slept) == bool(wait)


def test_a_split_vote_is_asked_again_even_by_who_does_not_wait(
    five: Servers, new_redlock: NewRedlock
) -> None:
    take_on(five[:2], "k", "x")
    take_on(five[2:4], "k", "y")
    clock = ClockThatDoes(lambda: expire_on(five[:2], "k"), after=3)
    redlock = new_redlock(five.urls, clock=clock)
    lease = redlock.acquire("k")
    assert len(clock.slept) == 3
    lease.ensure()


def test_a_split_vote_that_does_not_end_is_refused_as_such(
    five: Servers, new_redlock: NewRedlock
) -> None:
    take_on(five[:2], "k", "x")
    take_on(five[2:4], "k", "y")
    clock = LeapingClock()
    with pytest.raises(LockHeld) as caught:
        new_redlock(five.urls, clock=clock).acquire("k")
    assert caught.value.contended
    assert caught.value.owner in {"x", "y"}
    assert 10 <= len(clock.slept) <= 30
    assert_freed([five[4]], "k")


def test_every_try_has_an_owner_of_its_own(
    five: Servers, redlock: Redlock, new_redlock: NewRedlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    grant = Acquisition._grant

    def note_and_grant(
        self: Acquisition, channel: Channel, attempt: Attempt, proposed_us: int
    ) -> Sequence[GrantReply | None]:
        asked.append(attempt.owner)
        return grant(self, channel, attempt, proposed_us)

    lease = redlock.acquire("k")
    monkeypatch.setattr(Acquisition, "_grant", note_and_grant)
    clock = ClockThatDoes(lambda: redlock.release(lease), after=5)
    second = new_redlock(five.urls, clock=clock).acquire("k", wait=3600, label="task-1")
    assert len(asked) == len(set(asked)) == 6
    assert asked[-1] == second.owner
    assert {task_of(owner) for owner in asked} == {"task-1"}
