"""The run of one holder is ended in the worker that runs it, and no other."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state

from celery_redlock import SingletonTask
from celery_redlock.execution.running import current
from celery_redlock.pools import interrupt
from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.redlock.lease import new_owner, owner_id
from celery_redlock.worker import ending, signal_handlers
from celery_redlock.worker.control import redlock_end
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

OWNER = new_owner("task-1")
PID = 4711


class Pool:
    """A prefork pool that notes whose jobs are terminated."""

    def __init__(self) -> None:
        self.terminated: list[tuple[int, int]] = []

    def terminate_job(self, pid: int, number: int) -> None:
        self.terminated.append((pid, number))


class Request:
    def __init__(self, task_id: str, pid: int | None) -> None:
        self.id, self.worker_pid = task_id, pid
        self.terminated: list[str] = []

    def terminate(self, pool: object, name: str) -> None:
        assert isinstance(pool, Pool)
        self.terminated.append(name)


class Keeper:
    def __init__(self) -> None:
        self.record: LeaseRecord | None = LeaseRecord(PID, OWNER, "k", 7, 30_000)

    def lease_with_id(self, key: str, holder_id: str) -> LeaseRecord | None:
        return self.record if (key, holder_id) == ("k", owner_id(OWNER)) else None


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """The keeper of this process, whose pool's process PID holds `k`."""
    keeper = Keeper()
    monkeypatch.setitem(signal_handlers.keepers, os.getpid(), (None, keeper))
    return keeper


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """The requests that Celery knows to be executed."""
    requests: set[Any] = set()
    monkeypatch.setattr(worker_state, "active_requests", requests)
    monkeypatch.setattr(ending, "active_requests", requests)
    return requests


def end(pool: Pool, key: str = "k", holder: str = OWNER, **more: str) -> Any:
    state: Any = SimpleNamespace(consumer=SimpleNamespace(pool=pool))
    return redlock_end(state, key, owner_id(holder), "alice@ops", "stuck", **more)


def test_the_request_of_the_process_that_holds_the_lease_is_terminated(
    pool: Pool, keeper: Keeper, active: set[Any], log: Any
) -> None:
    copy, own, other = Request("task-1", 1), Request("task-1", PID), Request("task-2", 2)
    active |= {copy, own, other}
    assert end(pool) == {"ok": f"SIGTERM is sent to its process {PID}", "runs_here": True}
    assert (copy.terminated, own.terminated, other.terminated) == ([], ["TERM"], [])
    assert pool.terminated == []
    what = f"by=alice@ops: stuck action=SIGTERM is sent to its process {PID}"
    assert log() == [("WARNING", f"run ended by an operator key=k task_id=task-1 {what}")]


@pytest.mark.parametrize(
    ("key", "holder"), [("k", new_owner("task-1")), ("other", OWNER)], ids=["owner", "key"]
)
def test_the_run_of_another_holder_or_key_is_not_ended(
    pool: Pool, keeper: Keeper, active: set[Any], key: str, holder: str
) -> None:
    active.add(own := Request("task-1", PID))
    answer = end(pool, key, holder)
    assert answer == {"ok": f"{key} not held by {owner_id(holder)} here"}
    assert (own.terminated, pool.terminated) == ([], [])


def test_a_lease_that_is_over_ends_no_process(pool: Pool, keeper: Keeper, active: set[Any]) -> None:
    active.add(own := Request("task-1", PID))
    keeper.record = None
    assert "runs_here" not in end(pool)
    assert own.terminated == []


def test_a_process_that_outlives_the_first_signal_gets_the_second(
    pool: Pool, keeper: Keeper, active: set[Any]
) -> None:
    """Celery has forgotten the request by then."""
    active.add(Request("task-2", PID + 1))
    assert end(pool, signal="KILL")["runs_here"]
    assert pool.terminated == [(PID, signal.SIGKILL)]


def test_a_run_inside_of_another_tasks_body_is_refused(
    pool: Pool, keeper: Keeper, active: set[Any]
) -> None:
    active.add(outer := Request("outer", PID))
    answer = end(pool)
    assert answer == {
        "error": "it runs in the body of another task, outer: end that", "runs_here": True
    }  # fmt: skip
    assert (outer.terminated, pool.terminated) == ([], [])


def test_an_unknown_signal_is_refused(pool: Pool, keeper: Keeper, active: set[Any]) -> None:
    active.add(own := Request("task-1", PID))
    assert end(pool, signal="STOP")["error"] == "signal must be one of TERM, KILL, got STOP"
    assert own.terminated == []


@pytest.mark.parametrize("can_interrupt", [True, False])
def test_outside_of_prefork_the_body_is_interrupted(
    app: Celery,
    node: OneNode,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    log: Any,
    can_interrupt: bool,
) -> None:
    raised: list[Any] = []
    way = SimpleNamespace(trigger=raised.append, disarm=lambda: None) if can_interrupt else None
    monkeypatch.setattr(interrupt, "new_interrupt", lambda: way)
    answers = []

    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        run = current.get()
        assert run
        answers.append(end(pool, "t", new_owner("task-1")))
        answers.append(end(pool, "t", run.lease.owner))

    deliver(body)
    assert "runs_here" not in answers[0]
    if not can_interrupt:
        assert answers[1]["error"] == "its body can't be interrupted, or has just ended"
        return
    assert answers[1] == {"ok": "LeaseLost is raised in its body", "runs_here": True}
    assert [error.args for error in raised] == [("t", "its run was ended by alice@ops: stuck")]
    what = "by=alice@ops: stuck action=LeaseLost is raised in its body"
    assert ("WARNING", f"run ended by an operator key=t task_id=task-1 {what}") in log()
