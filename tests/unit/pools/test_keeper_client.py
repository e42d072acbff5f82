"""Clients write their leases and attempts to the table, and call the keeper only if need be."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_redlock import pools
from celery_redlock.messages import reservation
from celery_redlock.pools import pool_process
from celery_redlock.pools.keeper_client import CALL, KeeperClient
from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.pools.lease_table import ROWS, Phase, SharedLeaseTable
from celery_redlock.redlock import Lease, LockHeld
from celery_redlock.redlock.keeper import due_at
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.fake_clock import FakeClock
from tests.support.faults.strikes import Striker, strikers, strikes

NESTED = 8
ROWS_OF_THREE = range(3 * NESTED, 4 * NESTED)
FOLDER = str(Path(pools.__file__).parent)


def new_lease(ttl: float = 10.0) -> Lease:
    ttl_ms = round(ttl * 1000)
    return Lease("k", new_owner(), 7, ttl_ms, deadline=ttl, clock=FakeClock(0.0))


@pytest.fixture
def table() -> SharedLeaseTable:
    return SharedLeaseTable()


class Pipe:
    """A pipe to the keeper: what was called, and a way to block it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self.writing, False)

    def calls(self) -> list[tuple[int, int]]:
        data = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                data += os.read(self.reading, 1 << 20)
        return [call for call in CALL.iter_unpack(data) if call != (0, 0)]

    def fill(self) -> None:
        for size in (4096, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(self.writing, bytes(size))


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.reading, pipe.writing):
        with contextlib.suppress(OSError):
            os.close(fd)


def new_client(table: SharedLeaseTable, pipe: Pipe, index: int = 3) -> KeeperClient:
    keeper = SimpleNamespace(watch=lambda *_: None)
    redlock = cast(TaskLock, SimpleNamespace(clock=FakeClock(0.0), keeper=keeper))
    return KeeperClient(pipe.writing, table, index, redlock, lambda: None)


@pytest.fixture
def child(table: SharedLeaseTable, pipe: Pipe) -> KeeperClient:
    """A client that the keeper has heard of; it looks in a second."""
    child = new_client(table, pipe)
    assert pipe.calls() == [(os.getpid(), ROWS_OF_THREE.start)]
    table.announce_look(1.0)
    return child


def register(child: KeeperClient, lease: Lease) -> bool:
    return child.register(lease, 0.0, None, will_be_redelivered=False)


def left(table: SharedLeaseTable) -> list[LeaseRecord]:
    """Return what the rows would have if this process died now."""
    return [one for row in range(100) if (one := table.left_by(os.getpid(), row))]


def announced(table: SharedLeaseTable) -> list[str]:
    return [one.owner for one in left(table) if not one.token]


def registered(table: SharedLeaseTable) -> list[str]:
    return [one.owner for one in left(table) if one.token]


# --- leases ---------------------------------------------------------------------------------------


def test_a_short_task_calls_nobody(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    for _ in range(100):
        lease = new_lease()
        child.announcer("k", 10.0)(lease.owner)
        assert register(child, lease)
        assert registered(table) == [lease.owner]
        child.begin_release(lease)
        assert registered(table) == [lease.owner]
        child.end_release(lease)
        child.withdraw_attempts()
        assert left(table) == []
    assert pipe.calls() == []


def test_a_record_has_all_that_the_keeper_needs(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    lease = new_lease()
    lease.superseded, lease.hold_until, lease.acquired_at = "s", 60.0, 1.0
    assert child.register(lease, 3.0, "done", will_be_redelivered=True, successor="retry")
    [record] = left(table)
    assert record == LeaseRecord.of(
        lease,
        pid=os.getpid(),
        min_hold_until=3.0,
        done="done",
        will_be_redelivered=True,
        successor="retry",
    )


def test_a_message_that_may_not_come_again_is_left_to_celery(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    assert register(child, new_lease())
    [record] = left(table)
    assert (record.will_be_redelivered, record.successor) == (None, "")


def test_a_failed_release_begins_no_lock_delay(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    lease = new_lease()
    lease.lock_delay_ms = 60_000
    assert register(child, lease)
    child.leave_release(lease, 3.0, "done")
    [record] = left(table)
    assert (record.lock_delay_ms, record.min_hold_until, record.done) == (0, 3.0, "done")


@pytest.mark.parametrize("is_left", [True, False])
def test_a_lease_whose_release_has_ended_is_updated_no_more(
    child: KeeperClient, *, is_left: bool
) -> None:
    lease = new_lease()
    assert register(child, lease)
    assert lease.backing.refresh
    if is_left:
        child.leave_release(lease, 0.0, None)
    else:
        child.end_release(lease)
    assert lease.backing.refresh is None


def test_the_release_of_a_lease_that_has_no_row_is_not_left(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    child.leave_release(new_lease(), 0.0, None)
    assert left(table) == []


def test_only_a_lease_due_before_the_next_look_calls(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    assert register(child, new_lease(ttl=4.0))  # due after 1.4 s, and the look is after 1 s
    assert pipe.calls() == []
    assert register(child, new_lease(ttl=2.0))
    assert pipe.calls() == [(os.getpid(), ROWS_OF_THREE.start)]
    table.announce_look(math.inf)
    assert register(child, new_lease())
    assert len(pipe.calls()) == 1
    table.announce_look(due_at(new_lease(), 0.0))
    assert register(child, new_lease())
    assert pipe.calls() == [], "it looks just in time"


def test_a_look_that_is_overdue_is_called_for(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    table.announce_look(-1.0)
    assert register(child, new_lease())
    assert pipe.calls() == []
    table.announce_look(-1.1)
    assert register(child, new_lease())
    assert len(pipe.calls()) == 1


def test_a_child_renews_its_lease_if_the_main_process_is_gone(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    table.announce_look(-1.1)
    os.close(pipe.reading)
    lease = new_lease()
    assert not register(child, lease)
    assert lease.backing.refresh is None
    child.withdraw_attempts()
    assert left(table) == []


def test_a_full_pipe_has_called_the_keeper(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    table.announce_look(math.inf)
    pipe.fill()
    lease = new_lease()
    assert register(child, lease)
    assert registered(table) == [lease.owner]


def test_a_child_writes_nothing_before_the_keeper_knows_it(
    table: SharedLeaseTable, pipe: Pipe
) -> None:
    pipe.fill()
    child = new_client(table, pipe)
    child.announcer("k", 1.0)("owner-1")
    assert not register(child, new_lease())
    assert left(table) == []
    assert pipe.calls() == []
    child.announcer("k", 1.0)("owner-2")
    assert pipe.calls() == [(os.getpid(), ROWS_OF_THREE.start)]
    assert announced(table) == ["owner-2"]


def test_a_lease_without_a_free_row_is_not_registered(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    leases = [new_lease() for _ in range(NESTED)]
    assert all(register(child, lease) for lease in leases)
    assert not register(child, new_lease())
    assert sorted(registered(table)) == sorted(lease.owner for lease in leases)
    child.end_release(leases[0])
    assert register(child, new_lease())


def test_a_child_beyond_the_table_renews_its_leases(table: SharedLeaseTable, pipe: Pipe) -> None:
    child = new_client(table, pipe, index=ROWS // NESTED)
    child.announcer("k", 1.0)("owner-1")
    assert not register(child, new_lease())
    child.withdraw_attempts()


def test_a_lease_too_long_for_a_row_stays_an_attempt(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    lease = new_lease()
    child.announcer("k", 1.0)(lease.owner)
    lease.superseded = "s" * 5000
    assert not register(child, lease)
    assert announced(table) == [lease.owner]
    child.begin_release(lease)
    child.end_release(lease)
    child.withdraw_attempts()
    assert left(table) == []


def test_an_interrupt_anywhere_leaves_all_rows_to_the_next_task(
    table: SharedLeaseTable, pipe: Pipe
) -> None:
    child = new_client(table, pipe)
    struck: list[Lease] = []

    def run(_: int) -> None:
        lease = new_lease()
        struck.append(lease)
        child.announcer("k", 1.0)(lease.owner)
        register(child, lease)
        child.begin_release(lease)
        child.end_release(lease)
        child.withdraw_attempts()

    points = 0
    for _ in strikes(run, folder=FOLDER, opcodes=True):
        points += 1
        # After the task, which released the lease all the same.
        child.end_release(struck.pop())
        child.withdraw_attempts()
        assert {table.phase(row) for row in ROWS_OF_THREE} == {Phase.FREE}
        assert not child._leases
        assert not child._attempts
        assert sum(register(child, new_lease()) for _ in range(NESTED)) == NESTED
        for lease in list(child._leases):
            child.end_release(lease)
    assert points > 50


def test_an_interrupt_of_a_failed_release_leaves_all_rows_to_the_next_task(
    table: SharedLeaseTable, pipe: Pipe
) -> None:
    child = new_client(table, pipe)
    releasing: set[str] = set()
    vars(child.redlock.keeper)["is_releasing"] = releasing.__contains__
    struck: list[Lease] = []

    def run(_: int) -> None:
        lease = new_lease()
        struck.append(lease)
        releasing.add(lease.owner)
        register(child, lease)
        child.begin_release(lease)
        child.leave_release(lease, 0.0, None)
        child.withdraw_attempts()

    points = 0
    for _ in strikes(run, folder=FOLDER, opcodes=True):
        points += 1
        # After the task, which tried once more; the lock's own keeper has yet to hear of it.
        child.end_release(struck.pop())
        child.withdraw_attempts()
        others = [new_lease() for _ in range(NESTED)]
        assert sum(register(child, lease) for lease in others) >= NESTED - 1
        releasing.clear()
        child.withdraw_attempts()
        assert not child._left
        assert set(registered(table)) == {lease.owner for lease in child._leases}
        for lease in list(child._leases):
            child.end_release(lease)
    assert points > 50


def test_a_lease_that_ends_while_nobody_keeps_it_interrupts_the_body(
    table: SharedLeaseTable, pipe: Pipe
) -> None:
    expired: list[str] = []
    watched: list[Any] = []
    keeper = SimpleNamespace(watch=lambda *told: watched.append(told))
    redlock = cast(TaskLock, SimpleNamespace(clock=FakeClock(0.0), keeper=keeper))
    child = KeeperClient(pipe.writing, table, 3, redlock, lambda: expired.append("now"))
    lease = new_lease()
    assert register(child, lease)
    [(one, on_lost)] = watched
    assert one is lease
    on_lost(lease)
    assert expired == ["now"]


def test_a_lease_is_registered_though_no_thread_can_be_started(
    child: KeeperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(child.redlock.keeper, "watch", refuse)
    assert register(child, new_lease())


def test_a_registration_that_is_cut_short_takes_its_row(
    table: SharedLeaseTable, pipe: Pipe
) -> None:
    child = new_client(table, pipe)
    struck: list[Lease] = []

    def run(_: int) -> None:
        struck.append(new_lease())
        register(child, struck[-1])

    for _ in strikes(run, folder=FOLDER, opcodes=True):
        lease, other = struck.pop(), new_lease()
        was_registered = registered(table)
        child.withdraw_attempts()
        assert registered(table) == was_registered
        assert register(child, other)
        child.end_release(lease)
        assert registered(table) == [other.owner]
        child.end_release(other)
        child.withdraw_attempts()


def test_signal_handlers_and_what_they_interrupt_have_other_rows(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    leases: list[Lease] = []

    def acquire(*, is_announced: bool = True) -> None:
        leases.append(lease := new_lease())
        if is_announced:
            child.announcer("k", 1.0)(lease.owner)
        assert register(child, lease)

    hold = partial(acquire, is_announced=False)

    def announce() -> None:
        child.announcer("k", 1.0)(new_owner())

    for begin, expected in ((acquire, registered), (hold, registered), (announce, announced)):
        for at in itertools.count(1):
            with (striker := Striker(at, opcodes=True, strike=begin, folder=FOLDER)):
                begin()
            assert len(expected(table)) == (2 if striker.where else 1), striker.where
            child.withdraw_attempts()
            while leases:
                child.end_release(leases.pop())
            if not striker.where:
                break
        assert at > 50


def test_signal_handlers_may_withdraw_what_is_being_withdrawn(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    vars(child.redlock.keeper)["is_releasing"] = lambda _: False
    for striker in strikers(child.withdraw_attempts, folder=FOLDER):
        lease, other = new_lease(), new_lease()
        child.announcer("k", 1.0)(new_owner())
        assert register(child, lease)
        child.leave_release(lease, 0.0, None)
        with striker:
            child.withdraw_attempts()
            register(child, other)
        child.end_release(other)
        child.withdraw_attempts()
        assert left(table) == [], striker.where


def test_a_row_that_is_taken_meanwhile_may_have_been_withdrawn(
    child: KeeperClient, table: SharedLeaseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_free, rows = table.is_free, []

    def take_meanwhile(row: int) -> bool:
        rows.append(row)
        if len(rows) == 2:
            child.withdraw_attempts()
        return len(rows) != 2 and is_free(row)

    monkeypatch.setattr(table, "is_free", take_meanwhile)
    lease = new_lease()
    assert register(child, lease)
    assert registered(table) == [lease.owner]
    assert rows == [ROWS_OF_THREE[0]] * 2 + [ROWS_OF_THREE[1]] * 2


# --- attempts -------------------------------------------------------------------------------------


def test_an_attempt_is_announced_without_a_call(
    child: KeeperClient, table: SharedLeaseTable, pipe: Pipe
) -> None:
    child.announcer("k\udcff", 2.5)("owner-1")
    assert left(table) == [LeaseRecord(os.getpid(), "owner-1", "k\udcff", 0, 2500)]
    assert pipe.calls() == []


def test_the_next_attempt_replaces_the_one_before(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    announce = child.announcer("k", 1.0)
    for number in range(50):
        announce(f"owner-{number}")
    assert announced(table) == ["owner-49"]


def test_a_lease_is_registered_in_the_row_of_its_attempt(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    lease = new_lease()
    child.announcer("k", 1.0)(lease.owner)
    assert register(child, lease)
    assert announced(table) == []
    child.withdraw_attempts()
    assert registered(table) == [lease.owner]
    child.end_release(lease)
    assert left(table) == []


def test_a_registered_lease_is_no_attempt_that_may_be_revoked(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    lease = new_lease()
    child.announcer("k", 10.0)(lease.owner)
    table.note_revoked(ROWS_OF_THREE[0], lease.owner)
    assert child.is_wait_revoked()
    assert register(child, lease)
    assert not child.is_wait_revoked()


def test_the_rows_of_withdrawn_attempts_are_used_again(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    for _ in range(5):
        for number in range(NESTED):
            child.announcer("k", 1.0)(f"owner-{number}")
        assert len(announced(table)) == NESTED
        assert not register(child, new_lease())
        child.withdraw_attempts()
        assert announced(table) == []
    assert register(child, new_lease())


def test_an_attempt_too_long_for_a_row_is_not_announced(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    announce = child.announcer("k" * 2000, 1.0)
    announce("owner-1")
    announce("owner-2")
    assert announced(table) == []


@pytest.mark.parametrize("is_held", [False, True])
def test_a_reservation_is_announced_until_it_is_published(
    child: KeeperClient, table: SharedLeaseTable, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    lease = new_lease()

    def reserve(*_: Any, on_attempt: Any, **__: Any) -> Lease:
        on_attempt(lease.owner)
        assert announced(table) == [lease.owner]
        if is_held:
            raise LockHeld("k")
        return lease

    monkeypatch.setattr(pool_process, "_client", child)
    monkeypatch.setattr(child.redlock, "reserve", reserve, raising=False)
    with contextlib.suppress(LockHeld):
        reservation.reserve(child.redlock, "k", 1.0, "task-1", "")
    assert announced(table) == ([] if is_held else [lease.owner])
    pool_process.withdraw_attempts()
    assert announced(table) == []


def test_what_a_dead_process_left_is_not_overwritten(
    child: KeeperClient, table: SharedLeaseTable
) -> None:
    of_the_dead = LeaseRecord(os.getpid() + 1, "of the dead", "k", 0, 1000)
    for row in ROWS_OF_THREE:
        table.announce(row, of_the_dead)
    for striker in strikers(child.withdraw_attempts, folder=FOLDER):
        with striker:
            child.announcer("k", 1.0)("owner-1")
            assert not register(child, new_lease())
    assert {table.left_by(of_the_dead.pid, row) for row in ROWS_OF_THREE} == {of_the_dead}
    table.free(ROWS_OF_THREE[0])
    child.announcer("k", 1.0)("owner-2")
    assert announced(table) == ["owner-2"]
