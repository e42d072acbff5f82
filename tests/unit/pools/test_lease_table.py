"""Pool processes and the keeper read in the shared table what the other has written, or nothing.

Also while it is being written, and if its writer is killed at any byte.
"""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_redlock.pools.lease_record import LeaseRecord, encode
from celery_redlock.pools.lease_table import Phase, SharedLeaseTable
from celery_redlock.redlock import Lease, Redlock
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Superseded
from tests.support.fakes.fake_clock import FakeClock

URLS = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]
PID, ROW = 4711, 5


def new_lease() -> Lease:
    return Lease("k", new_owner(), 7, 10_000, deadline=10.0, clock=FakeClock(0.0))


def record_of(lease: Lease) -> LeaseRecord:
    return LeaseRecord.of(lease, pid=PID, min_hold_until=0.0, done=None, will_be_redelivered=None)


@pytest.fixture
def table() -> SharedLeaseTable:
    return SharedLeaseTable()


# --- the state of a lease -------------------------------------------------------------------------


def test_a_lease_is_updated_to_the_state_in_its_row(table: SharedLeaseTable) -> None:
    mine = new_lease()
    known_to_main = Lease("k", mine.owner, 7, 10_000, deadline=17.0, clock=mine.clock)
    table.write_state(5, known_to_main)
    table.update_lease(5, mine)
    assert mine.deadline == 17.0
    assert not mine.lost
    known_to_main.backing.is_lost = True
    table.write_state(5, known_to_main)
    table.update_lease(5, mine)
    assert mine.lost


def test_the_state_of_another_lease_updates_nothing(table: SharedLeaseTable) -> None:
    mine, another = new_lease(), new_lease()
    another.deadline, another.backing.is_lost = 99.0, True
    table.write_state(5, another)
    table.update_lease(5, mine)
    assert mine.deadline == 10.0
    assert not mine.lost


def test_an_earlier_deadline_in_the_row_is_ignored(table: SharedLeaseTable) -> None:
    mine = new_lease()
    table.write_state(5, Lease("k", mine.owner, 7, 10_000, deadline=3.0, clock=mine.clock))
    table.update_lease(5, mine)
    assert mine.deadline == 10.0


def test_what_both_processes_write_to_a_row_stays(table: SharedLeaseTable) -> None:
    mine, extended = new_lease(), new_lease()
    extended.owner, extended.deadline = mine.owner, 17.0
    table.announce(5, LeaseRecord(PID, mine.owner, "k", 0, 10_000))
    table.write_state(5, extended)
    table.hold(5, record_of(mine))
    table.update_lease(5, mine)
    assert mine.deadline == 17.0
    table.write_state(5, mine)
    assert table.is_held(5, mine.owner)
    for row, owner in ((4, mine.owner), (6, mine.owner), (5, new_owner())):
        assert not table.is_held(row, owner)
    table.begin_release(5)
    table.write_state(5, mine)
    assert not table.is_held(5, mine.owner)


def test_a_lease_released_during_its_renewal_is_not_lost(table: SharedLeaseTable) -> None:
    redlock, lease = Redlock(URLS), new_lease()
    table.hold(5, record_of(lease))

    def look(lease: Lease) -> None:
        lease.is_released = not table.is_held(5, lease.owner)

    lease.backing.refresh = look
    # The nodes had been told by the child when the main process asked them.
    table.begin_release(5)
    error = redlock._extension.note_replies(lease, [Superseded()] * 3, 0.0)
    assert "released" in str(error)
    assert not lease.backing.is_lost
    assert not lease.lost
    redlock.close()


# --- what does not fit ----------------------------------------------------------------------------


def test_an_attempt_too_long_for_a_row_is_not_announced(table: SharedLeaseTable) -> None:
    table.announce(ROW, LeaseRecord(PID, "owner-0", "k", 0, 1000))
    assert not table.announce(ROW, LeaseRecord(PID, "owner-1", "k" * 4096, 0, 1000))
    assert table.left_by(PID, ROW) is None


def test_an_attempt_that_just_fits_is_announced(table: SharedLeaseTable) -> None:
    attempt = LeaseRecord(PID, "owner", "", 0, 1000)
    space = 1408 - 192  # between the attempt's place in a row and the lease's
    fits = attempt._replace(key="k" * (space - len(encode(attempt))))
    assert table.announce(ROW, fits)
    assert table.left_by(PID, ROW) == fits
    assert not table.announce(ROW, fits._replace(key=fits.key + "k"))


def test_an_attempt_that_was_not_written_whole_is_none(table: SharedLeaseTable) -> None:
    table.announce(ROW, LeaseRecord(PID, "owner", "k", 0, 1000))
    at = table._map.find(b"owner", ROW * 4096)
    table._map[at] += 1
    assert table.left_by(PID, ROW) is None


def test_a_shutdown_is_known_to_the_processes_of_the_pool(table: SharedLeaseTable) -> None:
    assert not table.is_shutting_down()
    table.note_shutdown()
    assert table.is_shutting_down()


def test_a_lease_too_long_for_a_row_leaves_its_attempt(table: SharedLeaseTable) -> None:
    attempt, lease = LeaseRecord(PID, "owner-0", "k", 0, 1000), new_lease()
    table.announce(ROW, attempt)
    lease.key = "k" * 4096
    assert not table.hold(ROW, record_of(lease))
    assert table.left_by(PID, ROW) == attempt


def test_rows_do_not_overlap(table: SharedLeaseTable) -> None:
    leases = {row: new_lease() for row in range(100)}
    for row, lease in leases.items():
        lease.key = "k" * 1000
        assert table.announce(row, LeaseRecord(PID, lease.owner, lease.key, 0, 1000))
    for row, lease in leases.items():
        attempt = table.left_by(PID, row)
        assert attempt
        assert attempt.owner == lease.owner
        lease.superseded = "s" * 1500
        assert table.hold(row, record_of(lease))
        table.write_state(row, lease)
    assert all(table.left_by(PID, row) == record_of(lease) for row, lease in leases.items())


# --- killed at any byte, read at any byte ---------------------------------------------------------


class Memory(mmap.mmap):
    """Shared memory that notes each store."""

    stores: list[tuple[int, bytes]]

    def __setitem__(self, at: Any, value: Any) -> None:
        start = at.start if isinstance(at, slice) else at
        self.stores.append((start, value if isinstance(at, slice) else bytes([value])))
        super().__setitem__(at, value)


@dataclass
class Step:
    """One call, and what the row may have at any byte of it.

    Attributes:
        call: The call of the pool process.
        left: What it leaves in the row.
        during: What the row may have meanwhile, unless it has that or what was left before.
        held: Owner of the lease that is held throughout, if any.
    """

    call: Callable[[SharedLeaseTable], object]
    left: LeaseRecord | None
    during: list[None] = field(default_factory=list)
    held: str | None = None


def lives() -> Iterator[Step]:
    """Three leases in one row, one after the other, with attempts of all kinds in between."""
    for key in ("first", "the second one", "3"):
        lease = new_lease()
        lease.key = key
        refused = LeaseRecord(PID, new_owner(), key * 7, 0, 1000)
        attempt, record = LeaseRecord(PID, lease.owner, key, 0, 10_000), record_of(lease)
        yield Step(lambda table, one=refused: table.announce(ROW, one), refused)  # type: ignore[misc]
        # The refused one is over when the next one is announced.
        yield Step(lambda table, one=attempt: table.announce(ROW, one), attempt, [None])  # type: ignore[misc]
        yield Step(lambda table, one=record: table.hold(ROW, one), record)  # type: ignore[misc]
        extended = new_lease()
        extended.owner, extended.deadline = lease.owner, 20.0
        yield Step(
            lambda table, one=extended: table.write_state(ROW, one),  # type: ignore[misc]
            record,
            held=lease.owner,
        )
        yield Step(lambda table: table.begin_release(ROW), record)
        yield Step(lambda table: table.free(ROW), None)


ORDERS: dict[str, Callable[[list[int]], object]] = {
    "forwards": lambda indices: None,
    "backwards": lambda indices: indices.reverse(),
    "in any order": random.Random(5).shuffle,
}


@pytest.fixture(params=ORDERS)
def bytewise(request: pytest.FixtureRequest) -> Callable[[Step, Memory], Iterator[None]]:
    """Make a step, then again byte by byte, in the given order within each store."""

    def make(step: Step, memory: Memory) -> Iterator[None]:
        before, table = memory[:], SharedLeaseTable()
        memory.stores, table._map = [], memory
        step.call(table)
        mmap.mmap.__setitem__(memory, slice(None), before)
        yield
        for at, data in memory.stores:
            indices = list(range(len(data)))
            ORDERS[request.param](indices)
            for index in indices:
                mmap.mmap.__setitem__(memory, at + index, data[index])
                yield

    return make


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr("celery_redlock.pools.lease_table._NEXT_LOOK", 8 * 4096)
    monkeypatch.setattr("celery_redlock.pools.lease_table._IS_SHUTTING_DOWN", 8 * 4096 + 8)
    return Memory(-1, 8 * 4096 + 9)


def test_a_process_killed_at_any_byte_leaves_one_or_the_other(
    memory: Memory, bytewise: Callable[[Step, Memory], Iterator[None]]
) -> None:
    table = SharedLeaseTable()
    table._map = memory
    before: LeaseRecord | None = None
    for step in lives():
        for _ in bytewise(step, memory):
            assert table.left_by(PID, ROW) in (before, step.left, *step.during)
            assert table.left_by(PID + 1, ROW) is None
        assert table.left_by(PID, ROW) == step.left
        before = step.left


def test_the_keeper_reads_no_mixture_at_any_byte(
    memory: Memory, bytewise: Callable[[Step, Memory], Iterator[None]]
) -> None:
    table = SharedLeaseTable()
    table._map = memory
    written: list[LeaseRecord | None] = [None]
    for step in lives():
        if step.left and step.left.token and step.left not in written:
            written.append(step.left)
        for _ in bytewise(step, memory):
            assert table.last_lease(ROW) in (None, *written[-2:])
            if step.held:
                assert table.is_held(ROW, step.held)
                lease = Lease("k", step.held, 7, 10_000, 10.0, FakeClock(0.0))
                table.update_lease(ROW, lease)
                assert lease.deadline in (10.0, 20.0)


def test_a_row_is_free_until_it_is_used(table: SharedLeaseTable) -> None:
    assert {table.phase(row) for row in range(100)} == {Phase.FREE}
    table.announce(ROW, LeaseRecord(PID, "owner-0", "k", 0, 1000))
    assert table.phase(ROW) is Phase.ATTEMPT
    table.free(ROW)
    assert table.phase(ROW) is Phase.FREE
    assert table.phase(ROW + 1) is Phase.FREE
