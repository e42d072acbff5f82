"""The pauses of a caller that waits."""

from __future__ import annotations

import heapq
import random

import pytest

from celery_redlock.redlock.backoff import Backoff
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable

ROUND_S = 0.001


def held(owner: str = "somebody", remaining: float = 30.0, *, contended: bool = False) -> LockHeld:
    return LockHeld("k", owner, remaining, contended, owner=owner)


@pytest.mark.usefixtures("longest")
def test_who_was_passed_over_pauses_for_a_shorter_time() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.pause(held(), ROUND_S)
    pauses = [backoff.pause(held(f"other-{number}"), ROUND_S) for number in range(200)]
    assert pauses == sorted(pauses, reverse=True)
    assert pauses[1] == pytest.approx(0.101), "half as long after two others"
    assert pauses[-1] == pytest.approx(0.006)


@pytest.mark.usefixtures("longest")
def test_a_split_parts_old_and_young_alike() -> None:
    backoff = Backoff()
    for number in range(200):
        backoff.pause(held(f"other-{number}"), ROUND_S)
    pauses = [backoff.pause(held(contended=True), ROUND_S) for _ in range(10)]
    assert pauses[:3] == pytest.approx([0.003, 0.005, 0.009])
    assert pauses[-1] == pytest.approx(0.201)


@pytest.mark.usefixtures("longest")
def test_missing_nodes_are_asked_less_and_less_often() -> None:
    backoff = Backoff()
    pauses = [backoff.pause(QuorumUnavailable("k"), ROUND_S) for _ in range(20)]
    assert pauses[-1] == pytest.approx(0.201)


@pytest.mark.usefixtures("longest")
def test_a_pause_ends_with_the_holders_ttl() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.pause(held(), ROUND_S)
    assert backoff.pause(held(remaining=0.05), ROUND_S) == pytest.approx(0.051)


@pytest.mark.usefixtures("longest")
def test_who_hears_of_releases_polls_until_the_holders_ttl_ends() -> None:
    assert Backoff().pause(held(), ROUND_S, 5.0) == pytest.approx(5.001)
    assert Backoff().pause(held(remaining=2.0), ROUND_S, 5.0) == pytest.approx(2.001)
    assert Backoff().pause(held(contended=True), ROUND_S, 5.0) == pytest.approx(0.003)


@pytest.mark.usefixtures("longest")
@pytest.mark.parametrize("poll_interval_s", [0.0, 0.2])
def test_a_key_that_never_expires_is_not_asked_for_without_a_pause(poll_interval_s: float) -> None:
    backoff = Backoff()
    pauses = [backoff.pause(held(remaining=0.0), ROUND_S, poll_interval_s) for _ in range(20)]
    assert pauses[-1] == pytest.approx(0.201)


@pytest.mark.usefixtures("longest")
def test_no_number_of_splits_is_too_large() -> None:
    backoff = Backoff()
    pauses = [backoff.pause(held(contended=True), ROUND_S) for _ in range(1100)]
    assert pauses[-1] == pytest.approx(0.201)


def test_a_pause_is_at_least_as_long_as_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda low, high: low)
    assert Backoff().pause(held(), 0.002) == pytest.approx(0.002)
    assert Backoff().pause(held(), 0.0) == pytest.approx(0.001)


def test_nobody_starves_among_those_who_come_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three who hold the lock for 0.2 s and ask again as soon as they have released it."""
    for seed in range(10):
        monkeypatch.setattr(random, "uniform", random.Random(seed).uniform)
        turns, longest = contest(3, hold=0.2, seconds=120.0)
        assert max(turns) < 3 * min(turns), turns
        assert longest < 20.0


def contest(callers: int, hold: float, seconds: float) -> tuple[list[int], float]:
    """Return how often each had the lock, and the longest wait."""
    turns, asked = [0] * callers, [0.0] * callers
    backoffs = [Backoff() for _ in range(callers)]
    holder, longest = "", 0.0
    events = [(0.001 * number, number, False) for number in range(callers)]
    while events:
        now, caller, is_release = heapq.heappop(events)
        if now > seconds:
            break
        if is_release:
            holder, asked[caller], backoffs[caller] = "", now, Backoff()
            heapq.heappush(events, (now + ROUND_S, caller, False))
        elif holder:
            pause = backoffs[caller].pause(held(holder), ROUND_S)
            heapq.heappush(events, (now + pause, caller, False))
        else:
            turns[caller] += 1
            holder = f"{caller}-{turns[caller]}"
            longest = max(longest, now - asked[caller])
            heapq.heappush(events, (now + hold, caller, True))
    return turns, longest
