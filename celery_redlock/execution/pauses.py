"""Pauses of a message before it tries a held lock again: they grow with the holder's age."""

from __future__ import annotations

from celery_redlock.redlock.errors import LockHeld

SHORTEST_S = 0.25
"""Shortest pause, in seconds: each one costs a message."""
HALF, QUARTER = 0.5, 0.25


def pause_after(held: LockHeld, ttl: float, share: float = HALF) -> float:
    """Return how long a message waits before it tries the lock again, in seconds.

    A lease that is renewed does not tell when its run will end. But a message that waits for a
    share of the time for which the run has lasted starts late by at most that share of the run, and
    has tried a number of times that grows with the logarithm of the run's duration.

    Not past the end of the lease: the holder's process may have died. Nor for longer than `ttl`: it
    may die during the pause. So from then on the pauses stay the same.

    Args:
        held: Error of the last attempt.
        ttl: Ttl of the task's leases, seconds.
        share: Share of the holder's age so far.
    """
    if held.owner is None:  # nobody has a majority, nor leads
        return SHORTEST_S
    longest = min(held.remaining or ttl, ttl)  # 0.0: the lock key has no expiry
    pause = longest if held.age is None else min(held.age * share, longest)
    return max(SHORTEST_S, pause)
