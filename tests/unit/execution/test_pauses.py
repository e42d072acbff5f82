"""Pauses before a held lock is tried again: few, and none that is long for the run."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from celery_redlock.execution.decision import HALF, QUARTER, SHORTEST_S, pause_after
from celery_redlock.redlock.errors import LockHeld

TTL = 30.0
JITTER = 0.1
"""As of a message that is requeued."""


def held(age: float | None, remaining: float = TTL, owner: str | None = "x:task@host") -> LockHeld:
    return LockHeld("k", "task@host", remaining, owner=owner, age=age)


def tries(
    run: float, met_at: float, share: float, ttl: float, chance: random.Random
) -> list[float]:
    """Return when a message tries the lock of a run, in seconds since the run began.

    It met the run at the age of `met_at`, and gets the lock with the last try.
    """
    now, tried = met_at, []
    while now < run:
        tried.append(now)
        now += pause_after(held(now, ttl), ttl, share) * chance.uniform(1 - JITTER, 1 + JITTER)
    return [*tried, now]


@pytest.mark.parametrize("share", [HALF, QUARTER])
@pytest.mark.parametrize("run", [0.1, 1.5, 20.0, 60.0, 3600.0])
def test_few_tries_start_a_message_late_by_a_share_of_the_run(run: float, share: float) -> None:
    endless = 24 * 3600.0  # a ttl so long that it bounds no pause
    for seed in range(50):
        chance = random.Random(seed)
        tried = tries(run, chance.uniform(0, run), share, endless, chance)
        assert tried[-1] - run <= (1 + JITTER) * max(SHORTEST_S, share * run)
        # The first ones are of the shortest pause, until its share of the age is longer.
        few = 2 + SHORTEST_S / share / (SHORTEST_S * (1 - JITTER))
        grows = math.log1p(share * (1 - JITTER))
        assert len(tried) <= few + max(0.0, math.log(run * share / SHORTEST_S)) / grows + 1


@pytest.mark.parametrize("share", [HALF, QUARTER])
def test_a_long_run_is_asked_for_once_a_ttl(share: float) -> None:
    """Its process may die at any time, and the lock is free a ttl later."""
    tried = tries(3600.0, 0.0, share, TTL, random.Random(1))
    late = [at for at in tried if at > TTL / share]
    pauses = [after - before for before, after in itertools.pairwise(late)]
    assert min(pauses) >= TTL * (1 - JITTER)
    assert max(pauses) <= TTL * (1 + JITTER)
    assert len(tried) - len(late) <= 40


@pytest.mark.parametrize(
    ("age", "remaining", "pause"),
    [
        (3600.0, 4.0, 4.0),  # not renewed: its process has died
        (3600.0, 3600.0, TTL),  # a reservation
        (None, 3600.0, TTL),  # a reservation of a key without a floor
        (None, 4.0, 4.0),
        (3600.0, 0.0, TTL),  # without an expiry
        (0.0, TTL, SHORTEST_S),
        (3600.0, 0.01, SHORTEST_S),
    ],
)
def test_no_pause_is_longer_than_the_lease_or_the_ttl(
    age: float | None, remaining: float, pause: float
) -> None:
    assert pause_after(held(age, remaining), TTL) == pause


def test_a_lock_that_nobody_holds_is_tried_again_soon() -> None:
    assert pause_after(held(None, 0.0, owner=None), TTL) == SHORTEST_S
