"""Keepers renew what pool processes hold, and release what a killed one held or had asked for."""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_redlock import pools
from celery_redlock.pools import interrupt
from celery_redlock.pools.keeper_client import KeeperClient
from celery_redlock.pools.lease_table import Phase
from celery_redlock.pools.orphaned_leases import PROVISIONAL_S, RETRY_S
from celery_redlock.pools.prefork_keeper import PreforkKeeper, is_supported
from celery_redlock.redlock import Lease, QuorumUnavailable
from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.keeper import due_at
from celery_redlock.redlock.lease import holder_of, new_owner, owner_id
from celery_redlock.redlock.release import DONE_S
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import dispatch
from tests.support.fakes.fake_clock import FakeClock
from tests.support.faults.strikes import Struck, strikers

FOLDER = str(Path(pools.__file__).parent)
URLS = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]


class Nodes(TaskLock):
    """A lock that notes what is kept and released; the first releases may fail."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(URLS, clock=clock)
        self.time = clock
        self.released: list[tuple[str, str]] = []
        self.failures = 0
        self.taken_over: list[str] = []
        self.kept: dict[str, Any] = {}
        self.retried: set[str] = set()
        self.how: dict[str, Any] = {}
        self.keeper: Any = SimpleNamespace(
            keep=self._keep, watch=lambda *_: None, forget=self._forget, stop=bool,
            is_releasing=self.retried.__contains__,
            take_over=lambda lease: self.taken_over.append(lease.owner),
        )  # fmt: skip

    def new_lease(self) -> Lease:
        return Lease("k", new_owner("task-1"), 7, 30_000, self.time.now() + 30.0, self.time)

    def release(self, lease: Lease, **how: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise QuorumUnavailable(lease.key, {}, 3, "release")
        self.how = how
        self.released.append((lease.key, lease.owner))
        self._forget(lease)

    def _keep(self, lease: Lease, **callbacks: Any) -> None:
        assert lease.owner not in self.kept
        self.kept[lease.owner] = SimpleNamespace(lease=lease, **callbacks)

    def _forget(self, lease: Lease) -> None:
        self.kept.pop(lease.owner, None)


def fail_once(
    then: Callable[..., object], error: type[BaseException] = RuntimeError
) -> Callable[..., None]:
    """Return a function that raises an error when it is called for the first time."""
    errors = [error("no thread can be started")]

    def call(*args: Any, **how: Any) -> None:
        if errors:
            raise errors.pop()
        then(*args, **how)

    return call


class Member:
    """A process of the pool, which does nothing, and its client of the keeper."""

    def __init__(self, pool: Pool, index: int) -> None:
        self.process = subprocess.Popen([sys.executable, "-IS", "-c", "input()"], stdin=-1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "getpid", lambda: self.process.pid)
            patched.setattr(os, "close", lambda fd: None)  # the reading end is the main process's
            self.client: KeeperClient = pool.keeper.keeper_client(index, pool.nodes)

    def announce(self, key: str, owner: str) -> None:
        self.client.announcer(key, 30.0)(owner)

    def hold(self, ttl: float = 30.0, clock: FakeClock | None = None) -> Lease:
        clock = clock or FakeClock(0.0)
        lease = Lease("k", new_owner("task-1"), 7, round(ttl * 1000), clock.now() + ttl, clock)
        self.announce(lease.key, lease.owner)
        assert self.client.register(lease, 0.0, None, will_be_redelivered=False)
        return lease

    def release(self, lease: Lease) -> None:
        self.client.begin_release(lease)
        self.client.end_release(lease)
        self.client.withdraw_attempts()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Pool:
    """A main process, without its thread, and the processes of its pool."""

    def __init__(self) -> None:
        self.nodes = Nodes(FakeClock(0.0))
        self.revoked: set[str | None] = set()
        self.keeper = PreforkKeeper(lambda: self.nodes, self.revoked.__contains__)
        self.members: list[Member] = []
        self.child = self.new_member(3)

    def new_member(self, index: int) -> Member:
        self.members.append(Member(self, index))
        return self.members[-1]

    def announce(self, key: str, owner: str) -> None:
        self.child.announce(key, owner)

    def hold(self, ttl: float = 30.0) -> Lease:
        return self.child.hold(ttl, self.nodes.time)

    def step(self) -> None:
        self.keeper._wakeup.wake()
        self.keeper._step(self.nodes)

    def kill(self) -> None:
        self.child.kill()
        self.step()

    def is_called(self) -> bool:
        """Tell whether a process has called the keeper since its last step."""
        called = select.poll()  # for any descriptor
        called.register(self.keeper._reading, select.POLLIN)
        return bool(called.poll(0))

    def close(self) -> None:
        for member in self.members:
            member.process.kill()
            member.process.communicate()
        self.nodes.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.mark.parametrize("is_heard_of", [True, False])
def test_the_attempt_of_a_killed_process_is_released(pool: Pool, is_heard_of: bool) -> None:
    if is_heard_of:
        pool.step()
    pool.announce("k", "owner-1")
    pool.kill()
    assert pool.nodes.released == [("k", "owner-1")]


@pytest.mark.parametrize("failures", [0, 1])
def test_the_lock_s_keeper_releases_the_attempt_once_more(pool: Pool, failures: int) -> None:
    """A grant may come late, or no quorum have confirmed the first release."""
    pool.nodes.failures = failures
    pool.announce("k", "owner-1")
    pool.kill()
    assert len(pool.nodes.released) == 1 - failures
    assert pool.nodes.taken_over == ["owner-1"]
    pool.step()
    assert len(pool.nodes.released) == 1 - failures


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_registered_lease_is_released_once(
    pool: Pool, caplog: pytest.LogCaptureFixture, is_seen: bool
) -> None:
    lease = pool.hold()
    if is_seen:
        pool.step()
        assert list(pool.nodes.kept) == [lease.owner]
    pool.kill()
    assert pool.nodes.released == [(lease.key, lease.owner)]
    assert pool.nodes.kept == {}
    assert pool.nodes.taken_over == []
    pool.step()
    assert len(pool.nodes.released) == 1
    said = f"holder={shown(holder_of(lease.owner))} pid={pool.child.process.pid}"
    assert caplog.messages == [f"pool process died, its lock is released key=k {said}"]


def test_a_lease_whose_release_was_cut_short_is_released(pool: Pool) -> None:
    lease = pool.hold()
    pool.child.client.begin_release(lease)
    pool.kill()
    assert pool.nodes.released == [(lease.key, lease.owner)]


def leave_release(pool: Pool, lease: Lease, done: str | None = None) -> None:
    """Have the process fail to release a lease, which its own keeper tries again."""
    pool.child.client.begin_release(lease)
    pool.child.client.leave_release(lease, 3.0, done)
    pool.child.client.withdraw_attempts()


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_failed_release_of_a_process_that_ends_is_made(pool: Pool, is_seen: bool) -> None:
    lease = pool.hold()
    if is_seen:
        pool.step()
    pool.nodes.retried.add(lease.owner)
    leave_release(pool, lease, "done-1")
    pool.step()
    assert pool.nodes.kept == {}
    assert pool.nodes.released == [], "while the process lives, it tries again itself"
    pool.kill()
    assert pool.nodes.released == [(lease.key, lease.owner)]
    kept = pytest.approx(3.0, abs=0.1)
    assert pool.nodes.how == {
        "keep": kept,
        "done": "done-1",
        "done_ttl": PROVISIONAL_S,
        "is_delayed": False,
    }


def test_a_failed_release_begins_no_lock_delay(pool: Pool) -> None:
    lease = pool.hold()
    lease.lock_delay_ms = 60_000
    pool.nodes.retried.add(lease.owner)
    leave_release(pool, lease)
    pool.kill()
    assert pool.nodes.how["keep"] == pytest.approx(3.0, abs=0.1), "as long as the run has said"


def test_a_failed_release_without_a_mark_gets_none(pool: Pool) -> None:
    lease = pool.hold()
    pool.step()
    pool.nodes.retried.add(lease.owner)
    leave_release(pool, lease)
    pool.kill()
    assert pool.nodes.how["done"] is None


def test_the_row_of_a_failed_release_is_free_once_that_is_made(pool: Pool) -> None:
    leases = [pool.hold() for _ in range(8)]
    for lease in leases:
        pool.nodes.retried.add(lease.owner)
        leave_release(pool, lease)
    assert not pool.child.client.register(
        pool.nodes.new_lease(), 0.0, None, will_be_redelivered=False
    )
    pool.nodes.retried.clear()
    pool.hold()
    pool.child.client.withdraw_attempts()
    pool.kill()
    assert len(pool.nodes.released) == 1, "the last one, which was held"


def test_a_stopped_keeper_tries_a_while_to_release_what_is_left(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = pool.hold()
    pool.child.kill()
    pool.nodes.failures = 5
    pool.keeper._is_stopping = True
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        pool.nodes.time.move(0.25)

    monkeypatch.setattr(pool.keeper._wakeup, "wait", wait)
    monkeypatch.setattr(pool.nodes.time, "sleep", lambda _: None)
    closed: list[bool] = []
    monkeypatch.setattr(pool.nodes, "close", lambda: closed.append(True))
    pool.nodes.failures = 3
    pool.keeper._run(pool.nodes)
    assert pool.nodes.released == [(lease.key, lease.owner)]
    assert (waits, closed) == ([RETRY_S] * 3, [True])
    pool.nodes.failures = 1000
    pool.child = pool.new_member(3)
    pool.hold()
    pool.child.kill()
    waits.clear()
    pool.keeper._run(pool.nodes)
    assert (waits, closed) == ([RETRY_S] * 4, [True] * 2), "for a second"
    pool.nodes.failures = 0
    monkeypatch.setattr(pool.nodes.keeper, "take_over", fail_once(lambda _: None))
    pool.child = pool.new_member(3)
    pool.announce("k", "owner-1")
    held = pool.hold()
    pool.child.kill()
    pool.keeper._run(pool.nodes)
    assert pool.nodes.released[-1] == (held.key, held.owner), "also after an error"


def test_what_a_process_released_is_not_released_again(pool: Pool) -> None:
    for _ in range(2):
        pool.child.release(pool.hold())
        pool.announce("other", "owner-2")
        pool.child.client.withdraw_attempts()
    pool.kill()
    assert pool.nodes.released == []


@pytest.mark.parametrize("index", [3, 1024], ids=["in the table", "beyond"])
def test_a_pool_process_is_watched_without_any_lease(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    pool.child.kill()
    pool.child = pool.new_member(index)
    pool.step()
    [(pid, child)] = pool.keeper._children.items()
    assert (pid, child.rows) == (pool.child.process.pid, pool.child.client._rows)
    closed: list[int] = []
    monkeypatch.setattr(os, "close", closed.append)
    pool.kill()
    assert (pool.keeper._children, closed) == ({}, [child.pidfd])


def test_a_process_is_watched_once_a_file_descriptor_is_free(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = pool.hold()
    with monkeypatch.context() as patched:
        refuse = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        patched.setattr(os, "pidfd_open", Mock(side_effect=refuse))
        pool.step()
        # Meanwhile its leases are renewed, but not released.
        assert list(pool.nodes.kept) == [lease.owner]
        pool.step()
        assert pool.nodes.released == []
    pool.step()
    pool.kill()
    assert pool.nodes.released == [(lease.key, lease.owner)]


def test_a_killed_process_leaves_its_rows_to_the_next_one(pool: Pool) -> None:
    left = [pool.hold() for _ in range(8)]
    pool.child.kill()
    # Its place in the pool is taken before the keeper has heard of its death.
    successor = pool.new_member(3)
    lease = Lease("k", new_owner(), 7, 30_000, 30.0, pool.nodes.time)
    assert not successor.client.register(lease, 0.0, None, will_be_redelivered=False)
    pool.step()
    assert sorted(pool.nodes.released) == sorted((lease.key, lease.owner) for lease in left)
    held = successor.hold()
    pool.step()
    assert list(pool.nodes.kept) == [held.owner]
    successor.kill()
    pool.step()
    assert pool.nodes.released[8:] == [(held.key, held.owner)]


def test_a_death_releases_nothing_of_other_processes(pool: Pool) -> None:
    neighbours = [pool.new_member(2), pool.new_member(4)]
    kept = [one.hold().owner for one in neighbours]
    pool.step()
    # One died without a trace, one is in its place.
    killed, pool.child = pool.child, pool.new_member(3)
    kept.append(pool.hold().owner)
    killed.kill()
    pool.step()
    assert pool.nodes.released == []
    assert sorted(pool.nodes.kept) == sorted(kept)


# --- waits of revoked tasks -----------------------------------------------------------------------


def test_a_process_that_waits_is_told_that_its_task_is_revoked(pool: Pool) -> None:
    pool.step()
    pool.announce("k", new_owner("task-1"))
    client = pool.child.client
    client.announce_wait()
    assert pool.is_called()
    pool.step()
    assert not client.is_wait_revoked()
    pool.revoked.add("task-1")
    pool.nodes.time.time = pool.keeper._looks_at
    assert pool.nodes.time.now() < 1.0
    pool.step()
    assert client.is_wait_revoked()
    client.withdraw_attempts()
    assert not client.is_wait_revoked()


def test_a_process_is_not_told_of_other_tasks_or_earlier_ones(pool: Pool) -> None:
    pool.revoked.add("task-1")
    pool.announce("k", new_owner("task-1"))
    pool.child.client.announce_wait()
    pool.step()
    pool.child.client.withdraw_attempts()
    pool.announce("k", new_owner("task-2"))
    pool.step()
    assert not pool.child.client.is_wait_revoked()


def test_a_granted_attempt_is_looked_at_for_its_renewal_alone(pool: Pool) -> None:
    pool.hold(30.0)
    for _ in range(3):
        pool.step()
        assert pool.keeper._looks_at - pool.nodes.time.now() == pytest.approx(5.0, abs=0.01)
    pool.announce("other", new_owner("task-2"))
    pool.hold(1.2)
    pool.step()
    assert pool.keeper._looks_at - pool.nodes.time.now() == pytest.approx(0.2)


# --- looks at the rows ----------------------------------------------------------------------------


def test_short_tasks_wake_the_keeper_once_in_a_while(pool: Pool) -> None:
    pool.step()
    calls = 0
    for _ in range(1100):
        lease = pool.hold(ttl=30.0)
        pool.nodes.time.move(0.01)
        pool.child.release(lease)
        if pool.is_called() or pool.keeper._looks_at <= pool.nodes.time.now():
            calls += 1
            pool.step()
    # In eleven seconds: for the first task, then every five.
    assert calls == 3
    assert pool.nodes.kept == {}


def test_an_idle_worker_looks_at_nothing(pool: Pool) -> None:
    pool.step()
    assert pool.nodes.time.now() == 0.001, "what other processors store is seen by then"
    assert pool.keeper._looks_at == math.inf
    lease = pool.hold()
    assert pool.is_called()
    pool.step()
    pool.child.release(lease)
    for _ in range(2):
        pool.nodes.time.time = pool.keeper._looks_at
        pool.step()
    assert pool.keeper._looks_at == math.inf


@pytest.mark.parametrize("is_held", [True, False])
def test_the_next_look_is_a_sixth_of_the_shortest_ttl_away(pool: Pool, is_held: bool) -> None:
    leases = [pool.hold(ttl) for ttl in (60.0, 6.0, 30.0)]
    if not is_held:  # but was since the last look
        for lease in leases:
            pool.child.release(lease)
    pool.step()
    assert pool.keeper._looks_at - pool.nodes.time.now() == pytest.approx(1.0)
    assert pool.keeper._table.next_look() == pool.keeper._looks_at


@pytest.mark.parametrize(
    ("ttl_before", "is_over"), [(None, False), (6.0, False), (6.0, True), (60.0, False)]
)
def test_a_lease_written_at_any_line_of_a_look_is_seen_or_calls(
    pool: Pool, ttl_before: float | None, is_over: bool
) -> None:
    written: list[Lease] = []
    for striker in strikers(lambda: written.append(pool.hold(ttl=3.0)), folder=FOLDER):
        before = [pool.hold(ttl_before)] if ttl_before else []
        pool.step()
        if before:
            pool.nodes.time.time = pool.keeper._looks_at
        if is_over:
            pool.child.release(before.pop())
        with striker:
            pool.step()
        assert (
            pool.is_called()
            or pool.keeper._looks_at <= pool.nodes.time.now() + 1.0
            or (not written)
        ), striker.where
        pool.step()
        assert {one.owner for one in written + before} <= pool.nodes.kept.keys(), striker.where
        while leases := written or before:
            pool.child.release(leases.pop())
        pool.step()
        pool.step()


def test_a_lease_seen_before_it_is_held_is_kept_later(pool: Pool) -> None:
    lease = pool.hold()
    table, row = pool.keeper._table, pool.child.client._leases[lease]
    # The look comes between the two stores of the process.
    table._map[row * 4096] = Phase.ATTEMPT
    pool.step()
    assert pool.nodes.kept == {}
    table._map[row * 4096] = Phase.HELD
    pool.step()
    [kept] = pool.nodes.kept.values()
    assert (kept.lease.owner, kept.lease.is_released) == (lease.owner, False)


def test_a_released_lease_is_renewed_no_more(pool: Pool) -> None:
    lease = pool.hold()
    pool.step()
    kept = pool.nodes.kept[lease.owner].lease
    assert kept.remaining() > 0.0
    pool.child.client.begin_release(lease)
    # Before the keeper renews it, it looks whether it still may.
    assert kept.remaining() == 0.0
    pool.step()
    assert pool.nodes.kept == {}


def test_the_next_lease_of_a_row_replaces_the_one_before(pool: Pool) -> None:
    first = pool.hold()
    pool.step()
    kept = pool.nodes.kept[first.owner].lease
    pool.child.release(first)
    second = pool.hold()
    pool.step()
    assert list(pool.nodes.kept) == [second.owner]
    assert kept.is_released


def test_a_renewal_and_a_loss_are_seen_by_the_process(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda fd, number: signals.append(number))
    lease = pool.hold()
    pool.step()
    kept = pool.nodes.kept[lease.owner]
    kept.lease.deadline = 40.0
    kept.on_extended(kept.lease)
    assert 39.0 < lease.remaining() <= 40.0
    pool.step()
    assert pool.nodes.kept[lease.owner] is kept
    kept.lease.backing.is_lost = True
    kept.on_lost(kept.lease)
    assert lease.remaining() == 0.0
    assert lease.backing.is_lost
    assert signals == [interrupt.SIGNAL]


def test_the_loss_of_a_dead_process_s_lease_interrupts_nobody(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled: list[int | None] = []

    def fail(pidfd: int | None, _number: int) -> None:
        signalled.append(pidfd)
        raise ProcessLookupError

    monkeypatch.setattr(signal, "pidfd_send_signal", fail)
    lease = pool.hold()
    pool.step()
    kept = pool.nodes.kept[lease.owner]
    [child] = pool.keeper._children.values()
    kept.on_lost(kept.lease)
    assert signalled == [child.pidfd]
    monkeypatch.setattr(child, "pidfd", None)
    kept.on_lost(kept.lease)
    monkeypatch.setattr(pool.keeper, "_children", {})
    kept.on_lost(kept.lease)
    assert len(signalled) == 1


def test_a_message_that_comes_again_gets_no_done_mark(pool: Pool) -> None:
    lease = pool.nodes.new_lease()
    assert pool.child.client.register(lease, 0.0, "done-1", will_be_redelivered=True)
    pool.kill()
    assert pool.nodes.how["done"] is None


def test_an_outcome_is_applied_to_a_lease_that_was_not_seen_yet(pool: Pool) -> None:
    pool.step()
    lease = pool.hold()
    pool.keeper.record_task_outcome("task-1", will_be_redelivered=False)
    pool.step()
    [held] = pool.keeper._last_leases.values()
    assert (held.lease.owner, held.will_be_redelivered) == (lease.owner, False)
    pool.kill()
    assert pool.nodes.how["done_ttl"] == DONE_S


ERRORS = pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])


@ERRORS
def test_a_step_that_fails_is_repeated_soon(
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    pool.step()
    lease = pool.hold()
    keep = pool.nodes.keeper.keep
    waits: list[float] = []

    def keep_and_stop(*args: Any, **how: Any) -> None:
        keep(*args, **how)
        pool.keeper._is_stopping = True

    pool.nodes.keeper.keep = fail_once(keep_and_stop, error)
    monkeypatch.setattr(pool.keeper._wakeup, "wait", waits.append)
    monkeypatch.setattr(pool.nodes, "check", dict)
    monkeypatch.setattr(pool.nodes, "close", lambda: None)
    pool.keeper._run(pool.nodes)
    assert list(pool.nodes.kept) == [lease.owner]
    [record] = caplog.records
    assert record.getMessage() == "pool keeper failed, its step is repeated"
    assert record.exc_info
    assert record.exc_info[0] is error
    assert waits == [RETRY_S]


@ERRORS
def test_the_keeper_starts_if_its_first_check_fails(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def fail() -> dict[str, str]:
        pool.keeper._is_stopping = True
        raise error

    lease = pool.hold()
    pool.step()
    monkeypatch.setattr(pool.nodes, "check", fail)
    monkeypatch.setattr(pool.nodes, "close", lambda: None)
    pool.child.kill()
    pool.keeper._run(pool.nodes)
    assert pool.nodes.released == [("k", lease.owner)]


def test_a_dead_lease_is_released_though_no_other_is_renewed(pool: Pool) -> None:
    pool.nodes.keeper.keep = Mock(side_effect=RuntimeError("no thread can be started"))
    lease = pool.hold()
    pool.child.kill()
    pool.new_member(4).hold()
    with pytest.raises(RuntimeError):
        pool.step()
    assert pool.nodes.released == [(lease.key, lease.owner)]


def test_an_error_in_a_row_of_a_dead_process_leaves_no_other_row(pool: Pool) -> None:
    pool.nodes.keeper.take_over = fail_once(lambda _: None)
    pool.announce("k", "owner-1")
    lease = pool.hold()
    pool.child.kill()
    with suppress(RuntimeError):
        pool.step()
    pool.step()
    assert pool.nodes.released[-1] == (lease.key, lease.owner)
    assert pool.keeper._children == {}
    rows = pool.child.client._rows
    assert {pool.keeper._table.phase(row) for row in rows} == {Phase.FREE}


class EndingHandler(logging.Handler):
    """A handler of a user's that raises SystemExit."""

    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit


def test_a_log_handler_that_raises_keeps_no_dead_lease(pool: Pool) -> None:
    pool.step()
    lease = pool.hold()
    pool.step()
    pool.child.process.kill()
    pool.child.process.wait()
    log, handler = logging.getLogger("celery_redlock"), EndingHandler()
    log.addHandler(handler)
    try:
        dispatch.run_as_own(pool.step)
    finally:
        log.removeHandler(handler)
    assert pool.nodes.released == [("k", lease.owner)]


def test_the_keeper_s_thread_is_one_of_this_package(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def note(*_: object) -> None:
        thread = threading.current_thread()
        seen.append((dispatch.is_own_thread(), thread.name, thread.daemon))

    monkeypatch.setattr(pool.nodes, "check", note)
    monkeypatch.setattr(pool.nodes, "close", note)
    pool.keeper.start()
    pool.keeper.stop()
    assert seen == [(True, "redlock-pool-keeper", True)] * 2


def test_a_keeper_that_sleeps_is_woken_to_stop(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = threading.Event()

    class Poll:
        def __init__(self) -> None:
            self._poll = select_poll()
            self.register = self._poll.register

        def poll(self, timeout: float | None) -> Any:
            if timeout is None:
                sleeps.set()
            return self._poll.poll(timeout)

    select_poll = select.poll  # for any descriptor
    monkeypatch.setattr(select, "poll", Poll)
    monkeypatch.setattr(pool.nodes, "check", dict)
    pool.keeper.start()
    assert sleeps.wait(60.0)
    pool.keeper.stop()
    pool.keeper.stop()


def test_a_keeper_that_was_not_started_can_be_stopped(pool: Pool) -> None:
    pool.keeper.stop()


def test_an_outcome_wakes_the_keeper(pool: Pool) -> None:
    pool.step()
    assert not pool.keeper._wakeup.wait(0.0)
    pool.keeper.record_task_outcome("task-1", will_be_redelivered=True)
    assert pool.keeper._wakeup.wait(0.0)


def test_a_process_is_told_of_the_shutdown(pool: Pool) -> None:
    assert not pool.child.client.is_shutting_down()
    pool.keeper.note_shutdown()
    assert pool.child.client.is_shutting_down()


def test_a_process_that_calls_again_and_again_does_not_block(pool: Pool) -> None:
    assert not os.get_blocking(pool.child.client._fd)
    for _ in range(10_000):
        pool.child.client.announce_wait()
    pool.step()
    assert not pool.is_called()


def test_a_process_notices_that_its_main_process_is_gone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = PreforkKeeper(lambda: pool.nodes, lambda _: False)
    # The main process had the other copy of the pipe's reading end.
    client = keeper.keeper_client(0, pool.nodes)
    assert not client.register(pool.nodes.new_lease(), 0.0, None, will_be_redelivered=False)


def test_a_lease_that_nobody_renewed_interrupts_the_main_thread(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[str] = []
    monkeypatch.setattr(interrupt, "signal_main_thread", lambda: signals.append("sent"))
    watched: list[Any] = []
    pool.nodes.keeper.watch = lambda *told: watched.append(told)
    pool.child = pool.new_member(4)
    lease = pool.hold()
    [(one, on_lost)] = watched
    on_lost(one)
    assert (one, signals) == (lease, ["sent"])


# ---- how long it sleeps


class Polled:
    """Stands in for `select.poll()`: tells how long it is to sleep, and finds nothing."""

    def __init__(self) -> None:
        self.timeouts: list[float | None] = []

    def __call__(self) -> Polled:
        return self

    def register(self, *_: object) -> None: ...

    def poll(self, timeout: float | None) -> list[tuple[int, int]]:
        self.timeouts.append(timeout)
        return []


@pytest.fixture
def polled(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Polled:
    pool.nodes.time.move(10.0)
    pool.step()
    polled = Polled()
    monkeypatch.setattr(select, "poll", polled)
    return polled


def test_an_idle_keeper_sleeps_until_it_is_called(pool: Pool, polled: Polled) -> None:
    pool.step()
    assert polled.timeouts == [None]


def test_a_keeper_sleeps_until_its_next_look(pool: Pool, polled: Polled) -> None:
    pool.hold(6.0)
    pool.step()
    pool.step()
    pool.nodes.time.move(2.0)
    pool.step()
    assert polled.timeouts[1:] == [pytest.approx(1000.0), 0.0]


@pytest.mark.parametrize("ttl", [30.0, 0.12])
def test_a_release_that_failed_is_repeated_soon(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, ttl: float
) -> None:
    lease = pool.hold(30.0)
    pool.child.kill()
    other = pool.new_member(4)
    other.hold(ttl, pool.nodes.time)
    pool.nodes.failures = 1
    pool.step()
    polled = Polled()
    monkeypatch.setattr(select, "poll", polled)
    pool.step()
    assert pool.nodes.released == [(lease.key, lease.owner)]
    assert polled.timeouts == [pytest.approx(min(50.0, ttl * 1000 / 6))]


def test_a_process_that_can_t_be_watched_is_tried_again_soon(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(os, "pidfd_open", Mock(side_effect=refuse))
    pool.step()
    polled = Polled()
    monkeypatch.setattr(select, "poll", polled)
    pool.step()
    assert polled.timeouts == [50.0]


def test_a_keeper_that_is_to_stop_does_not_sleep(pool: Pool, polled: Polled) -> None:
    pool.keeper._is_stopping = True
    pool.step()
    assert polled.timeouts == [0.0]


# ---- without pidfds


def test_a_keeper_is_supported_only_where_there_are_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    closed: list[int] = []
    pidfd_open, close = os.pidfd_open, os.close

    def note_opened(pid: int) -> int:
        opened.append(pidfd_open(pid))
        return opened[-1]

    def note_closed(fd: int) -> None:
        closed.append(fd)
        close(fd)

    monkeypatch.setattr(os, "pidfd_open", note_opened)
    monkeypatch.setattr(os, "close", note_closed)
    assert is_supported()
    for module, name in ((signal, "pidfd_send_signal"), (os, "pidfd_open")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, Mock(side_effect=PermissionError))
            assert not is_supported()
        with monkeypatch.context() as patched:
            patched.delattr(module, name)
            assert not is_supported()
    assert len(opened) == 3
    assert set(opened) <= set(closed)


def test_a_lease_is_found_by_the_id_of_its_owner_while_it_is_held(pool: Pool) -> None:
    lease = pool.hold()
    pool.step()
    found = pool.keeper.lease_with_id("k", owner_id(lease.owner))
    assert found
    assert (found.pid, found.owner) == (pool.child.process.pid, lease.owner)
    assert pool.keeper.lease_with_id("k", owner_id(new_owner("task-1"))) is None
    assert pool.keeper.lease_with_id("other", owner_id(lease.owner)) is None
    pool.child.client.begin_release(lease)
    assert pool.keeper.lease_with_id("k", owner_id(lease.owner)) is None


# ---- at any line


def acquire(pool: Pool, lease: Lease) -> None:
    pool.announce(lease.key, lease.owner)
    assert pool.child.client.register(lease, 0.0, None, will_be_redelivered=False)


def look(pool: Pool, times: int) -> None:
    for _ in range(times):
        pool.step()


@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("ttl", [30.0, 3.0])
def test_the_keeper_may_look_at_any_line_of_a_process(pool: Pool, ttl: float, looks: int) -> None:
    clock = pool.nodes.time
    for striker in strikers(partial(look, pool, looks), folder=FOLDER):
        clock.move(60.0)
        pool.step()
        lease = Lease("k", new_owner(), 7, round(ttl * 1000), clock.now() + ttl, clock)
        with striker:
            acquire(pool, lease)
        looks_at = pool.keeper._table.next_look()
        assert pool.is_called() or looks_at <= due_at(lease, clock.now()), striker.where
        pool.step()
        assert list(pool.nodes.kept) == [lease.owner], striker.where
        with striker:
            pool.child.release(lease)
        pool.step()
        assert pool.nodes.kept == {}, striker.where
        assert pool.nodes.released == [], striker.where


def test_a_process_may_die_at_any_line() -> None:
    for striker in strikers(folder=FOLDER):
        pool, is_granted = Pool(), False
        lease = pool.nodes.new_lease()
        try:
            pool.step()
            with suppress(Struck):
                with striker:
                    pool.announce(lease.key, lease.owner)
                    is_granted = True
                    assert pool.child.client.register(lease, 0.0, None, will_be_redelivered=False)
                pool.step()
                with striker:
                    pool.child.client.begin_release(lease)
                    is_granted = False
                    pool.child.client.end_release(lease)
                    pool.child.client.withdraw_attempts()
            pool.kill()
            if is_granted:
                assert pool.nodes.released == [(lease.key, lease.owner)], striker.where
            for kept in pool.nodes.kept.values():
                # Its release was made, and it is renewed no more.
                kept.lease.backing.refresh(kept.lease)
                assert kept.lease.is_released, striker.where
            rows = pool.child.client._rows
            assert {pool.keeper._table.phase(row) for row in rows} == {Phase.FREE}
        finally:
            pool.close()
