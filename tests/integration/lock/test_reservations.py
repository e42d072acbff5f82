"""Locks that outlive who took them: done marks, and reservations that a run takes up."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from celery_redlock.redlock import LockHeld
from celery_redlock.redlock.errors import AlreadyDone
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.judges.nodes import (
    assert_freed,
    floors_on,
    holders_on,
    ms_left_on,
    take_on,
)


def test_an_attempt_that_a_done_mark_ends_leaves_nothing_behind(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    redlock.release(redlock.acquire("k"), done="task-1")
    assert_freed(five, "k")
    for server in five[:2]:
        with server.client() as client:
            client.flushall()
    with pytest.raises(AlreadyDone):
        rival.acquire_for_task("k", unless_done=("task-1",))
    assert_freed(five, "k")


def test_a_reservation_has_no_token_but_keeps_tokens_in_order(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    """The next lease's token is above the last lease's."""
    first = redlock.acquire("k")
    redlock.release(first)
    eventually(lambda: set(floors_on(five, "k")) == {first.token + 1})
    reservation = redlock.reserve("k", 7200)
    assert reservation.token == 0
    run = rival.acquire_for_task("k", supersedes=reservation.owner)
    assert run.took_over
    assert run.token > first.token
    rival.release(run)
    redlock.release_owner("k", redlock.reserve("k", 7200).owner)
    assert redlock.acquire("k").token > run.token


def is_free(servers: Sequence[Server], key: str) -> bool:
    return holders_on(servers, key) == [None] * len(servers)


def last_for_hours(servers: Sequence[Server], key: str) -> bool:
    return all(ms_left_on(server, key) > 7_000_000 for server in servers)


def forget_scripts(servers: Sequence[Server]) -> None:
    for server in servers:
        with server.client() as client:
            client.script_flush()


def test_a_reservation_is_dropped_where_scripts_are_forgotten(
    five: Servers, redlock: TaskLock
) -> None:
    for _ in range(20):
        reservation = redlock.reserve("k", 7200)
        forget_scripts(five)
        # The majority is enough: nobody waits for what the others answer.
        redlock.release_owner("k", reservation.owner)
        eventually(lambda: holders_on(five, "k") == [None] * 5)


def test_a_refused_reservation_is_released_despite_lost_scripts(
    five: Servers, redlock: TaskLock
) -> None:
    redlock.reserve("warm", 60)
    take_on(five[:3], "k", "other")
    for _ in range(20):
        forget_scripts(five)
        with pytest.raises(LockHeld):
            redlock.reserve("k", 7200)
        eventually(lambda: holders_on(five[3:], "k") == [None] * 2)


def test_a_claim_is_kept_and_released_despite_lost_scripts(
    five: Servers, redlock: TaskLock
) -> None:
    for number in range(20):
        key = f"k{number}"
        claim = redlock.reserve(key, 60)
        forget_scripts(five)
        redlock.release(claim, keep=7200)
        eventually(partial(last_for_hours, five, key))
        forget_scripts(five)
        redlock.release(claim)
        eventually(partial(is_free, five, key))


def stands_alone(servers: Servers, key: str, owner: str) -> bool:
    """Tell whether this owner has the lock on a majority, and nobody on any other node."""
    holders = holders_on(servers, key)
    return holders.count(owner) > len(servers) // 2 and {*holders} <= {owner, None}


def test_of_reservations_that_are_asked_for_at_once_one_stands(
    five: Servers, new_redlock: NewRedlock
) -> None:
    rivals = [new_redlock(five.urls) for _ in range(6)]

    def reserve(rival: TaskLock, key: str) -> str | None:
        try:
            return rival.reserve(key, 60).owner
        except LockHeld:
            return None

    with ThreadPoolExecutor(len(rivals)) as pool:
        for number in range(20):
            key = f"k{number}"
            [winner] = filter(None, pool.map(partial(reserve, key=key), rivals))
            # What another had for a moment, a slow node may free a little later.
            eventually(partial(stands_alone, five, key, winner))


def test_a_minority_with_a_higher_token_stops_no_hand_over(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    # By somebody whom the majority refused.
    take_on(five[:2], "k", lease.owner, token=lease.token + 1)
    reservation = redlock.reserve(
        "k", 7200, supersedes=lease.owner, owner="told:task@host", highest_floor=lease.token
    )
    assert reservation.took_over
    redlock.release(lease)
    assert_freed(five[:2], "k")
    eventually(lambda: holders_on(five[2:], "k") == ["told:task@host"] * 3)
    run = rival.acquire_for_task("k", supersedes="told:task@host")
    assert run.took_over
    assert run.token > reservation.token
    rival.release(run)
    assert_freed(five, "k")
