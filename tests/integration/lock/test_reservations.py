"""Locks that outlive who took them: done marks, and reservations that a run takes up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld
from celery_redlock.redlock.errors import AlreadyDone, ConfigurationError
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    expire_on,
    floors_on,
    holder_on,
    holders_on,
    ms_left_on,
    take_on,
)


def test_a_done_mark_ends_attempts_under_its_label_and_no_others(
    redlock: TaskLock, rival: TaskLock
) -> None:
    redlock.release(redlock.acquire("k"), done="task-1")
    with pytest.raises(AlreadyDone) as caught:
        rival.acquire_for_task("k", unless_done=("task-1",), wait=math.inf)
    assert caught.value.key == "k"
    rival.release(rival.acquire_for_task("k", unless_done=("task-2",)))
    rival.release(rival.acquire_for_task("other", unless_done=("task-1",)))
    rival.release(rival.acquire("k"))


def test_a_done_mark_says_how_long_it_lasts_and_can_be_prolonged(
    redlock: TaskLock, rival: TaskLock
) -> None:
    redlock.release(redlock.acquire("k"), done="task-1", done_ttl=60)
    with pytest.raises(AlreadyDone) as caught:
        rival.acquire_for_task("k", unless_done=("task-1",))
    assert 0 < caught.value.remaining <= 60
    rival.mark_done("k", "task-1")
    with pytest.raises(AlreadyDone) as caught:
        redlock.acquire_for_task("k", unless_done=("task-1",))
    assert 60 < caught.value.remaining <= 3600
    redlock.acquire("k").ensure()


def test_a_done_mark_does_not_touch_the_lock(five: Servers, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    redlock.mark_done("k", "task-1")
    lease.ensure()
    assert max(floors_on(five, "k")) == lease.token


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


def test_a_reservation_is_taken_up_by_one_run(redlock: TaskLock, rival: TaskLock) -> None:
    reservation = redlock.acquire("k", label="message")
    with pytest.raises(LockHeld):
        rival.acquire("k")
    run = rival.acquire_for_task("k", supersedes=reservation.owner)
    assert run.took_over
    assert run.token > reservation.token
    with pytest.raises(LockHeld) as caught:
        redlock.acquire_for_task("k", supersedes=reservation.owner)
    assert caught.value.owner == run.owner, "the copy finds who was first"
    with pytest.raises(LeaseLost):
        reservation.ensure()
    run.ensure()


def test_releasing_a_reservation_after_its_run_began_is_harmless(
    redlock: TaskLock, rival: TaskLock
) -> None:
    reservation = redlock.acquire("k")
    run = rival.acquire_for_task("k", supersedes=reservation.owner)
    redlock.release(reservation)
    run.ensure()


def test_a_run_of_an_expired_reservation_acquires_a_plain_lock(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    reservation = redlock.acquire("k")
    expire_on(five, "k")
    run = rival.acquire_for_task("k", supersedes=reservation.owner)
    assert not run.took_over
    run.ensure()


def test_a_reservation_does_not_open_another_s_lock(redlock: TaskLock, rival: TaskLock) -> None:
    lease = redlock.acquire("k")
    with pytest.raises(LockHeld):
        rival.acquire_for_task("k", supersedes="somebody:else@host")
    lease.ensure()


def test_a_reservation_may_stand_longer_than_any_lease(five: Servers, redlock: TaskLock) -> None:
    reservation = redlock.reserve("k", 7200, label="message")
    assert 7100 < reservation.remaining() <= 7200
    assert 7_100_000 < ms_left_on(five[0], "k") <= 7_200_000
    with pytest.raises(LockHeld) as caught:
        redlock.reserve("k", 7200)
    assert caught.value.owner == reservation.owner
    assert redlock.keeper.kept() == []


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


def test_a_reservation_is_never_renewed(redlock: TaskLock) -> None:
    reservation = redlock.reserve("k", 60)
    with pytest.raises(ConfigurationError) as caught:
        redlock.extend(reservation)
    assert str(caught.value) == (
        "cannot extend 'k': it is reserved, which is never renewed; reserve it for longer"
    )
    with pytest.raises(ConfigurationError, match="reserved"):
        reservation.ensure()
    assert not reservation.lost
    lease = redlock.acquire("other")
    refused, renewed = redlock.extend_all([reservation, lease])
    assert isinstance(refused, ConfigurationError)
    assert renewed is None
    redlock.release(reservation)
    redlock.release(lease)


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


def test_a_reservation_can_have_an_owner_that_was_announced(
    redlock: TaskLock, rival: TaskLock
) -> None:
    first = redlock.acquire("k")
    reservation = rival.reserve("k", 7200, supersedes=first.owner, owner="told:task@host")
    assert reservation.owner == "told:task@host"
    assert reservation.took_over
    with pytest.raises(LeaseLost):
        first.ensure()
    assert redlock.acquire_for_task("k", supersedes="told:task@host").token > reservation.token


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


def test_a_lock_a_majority_granted_to_others_is_not_handed_over(
    five: Servers, redlock: TaskLock
) -> None:
    lease = redlock.acquire("k")
    redlock.release(redlock.acquire_for_task("k", supersedes=lease.owner))
    hand_over = partial(
        redlock.reserve,
        "k", 7200, supersedes=lease.owner, owner="told:task@host", highest_floor=lease.token,
    )  # fmt: skip
    with pytest.raises(LockHeld) as caught:
        hand_over()
    assert (caught.value.holder, caught.value.contended) == (None, True)
    assert_freed(five, "k")


def test_an_announced_owner_is_used_for_one_attempt_only(
    five: Servers, new_redlock: NewRedlock
) -> None:
    take_on(five[:2], "k", "x")
    take_on(five[2:4], "k", "y")
    clock = LeapingClock()
    with pytest.raises(LockHeld):
        new_redlock(five.urls, clock=clock).reserve("k", 60, owner="told:task@host")
    assert not clock.slept
    assert_freed([five[4]], "k")


def test_only_the_reservation_of_the_given_owner_is_dropped(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    reservation = redlock.reserve("k", 7200)
    # On another connection, so a node that is slow might have it after it was dropped.
    eventually(lambda: holders_on(five, "k") == [reservation.owner] * 5)
    assert not rival.release_owner("k", "somebody:else@host")
    assert holders_on(five, "k") == [reservation.owner] * 5
    assert rival.release_owner("k", reservation.owner)
    assert not rival.release_owner("k", reservation.owner)
    rival.acquire("k")


def leave_on(
    servers: Sequence[Server], ttl: float = 7200, *, is_reservation: bool = True
) -> list[str | None]:
    """Leave the lock on each node to an owner of its own, and return them."""
    owners = [new_owner("gone", is_reservation=is_reservation) for _ in servers]
    for server, owner in zip(servers, owners, strict=True):
        take_on([server], "k", owner, ttl=ttl)
    return list(owners)


def assert_free_in_the_end(servers: Servers, have_the_lock: Callable[[], object]) -> None:
    """Have the lock again and again: a node's answer is seen only if it is among the first."""

    def are_free_afterwards() -> bool:
        have_the_lock()
        return holders_on(servers, "k") == [None] * len(servers)

    eventually(are_free_afterwards)


def test_leftover_reservations_on_a_minority_end_with_next_runs(
    five: Servers, redlock: TaskLock
) -> None:
    leave_on(five[:2])
    assert_free_in_the_end(five, lambda: redlock.release(redlock.acquire("k")))


def test_a_lease_is_had_whatever_is_left_of_reservations(five: Servers, redlock: TaskLock) -> None:
    leave_on(five)
    assert_free_in_the_end(five, lambda: redlock.release(redlock.acquire("k")))


def test_a_hand_over_that_is_under_way_is_no_waiter_s_to_free(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    # It stands on one node before it stands on the next.
    [begun] = leave_on(five[:1])
    for _ in range(20):
        with pytest.raises(LockHeld):
            rival.acquire("k")
    assert holder_on(five[0], "k") == begun


def test_a_hand_over_under_way_survives_rounds_without_majority(
    five: Servers, new_redlock: NewRedlock
) -> None:
    begun = leave_on(five[:4])
    clock = LeapingClock()
    seen: list[list[str | None]] = []
    redlock = new_redlock(five.urls, clock=clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "sleep", lambda _: seen.append(holders_on(five[:4], "k")))
        redlock.acquire("k")
    assert seen[:5] == [begun] * 5


def test_a_lease_that_is_left_on_a_minority_is_nobody_s_to_free(
    five: Servers, redlock: TaskLock
) -> None:
    left = leave_on(five[:2], is_reservation=False)
    for _ in range(20):
        redlock.release(redlock.acquire("k"))
    assert holders_on(five[:2], "k") == left


def test_a_message_is_reserved_despite_leftover_reservations(
    five: Servers, redlock: TaskLock
) -> None:
    leave_on(five, ttl=7000)
    assert_free_in_the_end(
        five, lambda: redlock.release_owner("k", redlock.reserve("k", 7200).owner)
    )


def test_a_reservation_that_may_be_under_way_is_not_released(
    five: Servers, redlock: TaskLock
) -> None:
    left = leave_on(five[:2])
    for _ in range(20):
        redlock.release_owner("k", redlock.reserve("k", 7200).owner)
    assert holders_on(five[:2], "k") == left
