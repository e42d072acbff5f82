"""What a pool process and the main process tell each other of leases, without either of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, cast

import pytest

from celery_redlock.board import Board
from celery_redlock.child_end import ChildEnd
from celery_redlock.redlock import Lease, Redlock
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.quorum import Superseded
from tests.support.fake_clock import FakeClock

NESTED = 8
URLS = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]


def new_lease() -> Lease:
    return Lease("k", new_owner(), 7, 10_000, deadline=10.0, clock=FakeClock(0.0))


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
def child(board: Board, pipe: tuple[int, int]) -> ChildEnd:
    return ChildEnd(pipe[1], board, index=3, redlock=cast(Redlock, object()))


def take(child: ChildEnd, lease: Lease) -> bool:
    return child.take(lease, 0.0, None, comes_again=False)


def fill(writing: int) -> None:
    for size in (4096, 1):
        try:
            while True:
                os.write(writing, b"\n" * size)
        except BlockingIOError:
            continue


def messages(reading: int) -> list[dict[str, Any]]:
    data = b""
    try:
        while True:
            data += os.read(reading, 1 << 20)
    except BlockingIOError:
        return [json.loads(line) for line in data.splitlines() if line]


# --- the board ------------------------------------------------------------------------------------


def test_a_child_sees_what_the_main_process_wrote_of_its_lease(board: Board) -> None:
    mine = new_lease()
    known_to_main = Lease("k", mine.owner, 7, 10_000, deadline=17.0, clock=mine.clock)
    board.post(5, known_to_main)
    board.read(5, mine)
    assert mine.deadline == 17.0
    assert not mine.lost
    known_to_main.is_lost = True
    board.post(5, known_to_main)
    board.read(5, mine)
    assert mine.lost


def test_a_child_heeds_no_record_of_another_lease(board: Board) -> None:
    mine, another = new_lease(), new_lease()
    another.deadline, another.is_lost = 99.0, True
    board.post(5, another)
    board.read(5, mine)
    assert mine.deadline == 10.0
    assert not mine.lost


def test_a_later_deadline_is_never_taken_back(board: Board) -> None:
    mine = new_lease()
    board.post(5, Lease("k", mine.owner, 7, 10_000, deadline=3.0, clock=mine.clock))
    board.read(5, mine)
    assert mine.deadline == 10.0


def test_what_main_and_child_write_does_not_mix(board: Board) -> None:
    mine = new_lease()
    board.give_back(5, mine, is_done=False)
    board.post(5, mine)
    assert board.is_being_given_back(5, mine)
    assert not board.is_given_back(5, mine)
    board.give_back(5, mine, is_done=True)
    board.post(5, mine)
    assert board.is_being_given_back(5, mine)
    assert board.is_given_back(5, mine)
    for slot, lease in ((4, mine), (6, mine), (5, new_lease())):
        assert not board.is_being_given_back(slot, lease)
        assert not board.is_given_back(slot, lease)


# --- the pipe -------------------------------------------------------------------------------------


def test_what_is_taken_and_given_back_is_told_in_order(
    child: ChildEnd, pipe: tuple[int, int]
) -> None:
    leases = [new_lease() for _ in range(NESTED)]
    assert all(take(child, lease) for lease in leases)
    for lease in leases:
        child.give_back(lease)
    told = messages(pipe[0])
    owners = [lease.owner for lease in leases]
    assert [one["take"] for one in told[:NESTED]] == owners
    assert [one["give"] for one in told[NESTED:]] == owners


def test_a_lease_of_which_the_pipe_takes_no_more_is_for_the_child_to_keep(
    child: ChildEnd, pipe: tuple[int, int]
) -> None:
    fill(pipe[1])
    assert not take(child, new_lease())
    messages(pipe[0])
    assert take(child, new_lease())


def test_no_more_leases_are_told_of_than_there_is_room_for(child: ChildEnd) -> None:
    leases = [new_lease() for _ in range(NESTED)]
    assert all(take(child, lease) for lease in leases)
    assert not take(child, new_lease())
    child.give_back(leases[0])
    assert take(child, new_lease())


def test_a_key_of_any_length_is_locked_if_not_told_of(child: ChildEnd) -> None:
    lease = new_lease()
    lease.key = "k" * 5000
    assert not take(child, lease)


def test_what_was_given_back_while_the_pipe_was_full_is_told_later(
    child: ChildEnd, board: Board, pipe: tuple[int, int]
) -> None:
    leases = [new_lease() for _ in range(NESTED)]
    for lease in leases:
        take(child, lease)
    messages(pipe[0])
    fill(pipe[1])
    for lease in leases:
        child.give_back(lease)
    # Meanwhile the board says so, and nothing is written over it.
    slots = range(3 * NESTED, 4 * NESTED)
    for lease in leases:
        assert any(board.is_given_back(slot, lease) for slot in slots)
    assert not take(child, new_lease())
    messages(pipe[0])
    assert take(child, new_lease())
    assert [one.get("give") for one in messages(pipe[0])[:-1]] == [one.owner for one in leases]


# --- renewed while it is given back ---------------------------------------------------------------


def test_a_lease_that_is_given_back_while_it_is_renewed_is_not_lost(board: Board) -> None:
    redlock, lease = Redlock(URLS), new_lease()

    def look(lease: Lease) -> None:
        lease.is_released = board.is_being_given_back(5, lease)

    lease.refresh = look
    # The nodes had been told by the child when the main process asked them.
    board.give_back(5, lease, is_done=False)
    error = redlock._extended(lease, [Superseded()] * 3, 0.0)
    assert "released" in str(error)
    assert not lease.is_lost
    assert not lease.lost
    redlock.close()
