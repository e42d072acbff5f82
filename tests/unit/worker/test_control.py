"""Remote control commands: which locks a worker shows, and whose lock is released."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery import Celery, Task
from celery.worker import state as worker_state

from celery_redlock.config import app_lock
from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import LockHeld
from celery_redlock.worker.control import redlock_held, redlock_release
from tests.support.fakes.forged import NewTask
from tests.support.fakes.one_node import OneNode
from tests.support.fakes.simulated_network import Network

Running = Callable[..., None]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Running:
    """Make the worker run a task, with its arguments."""
    requests: set[Any] = set()
    monkeypatch.setattr(worker_state, "active_requests", requests)

    def run(name: str, task_id: str, *args: Any) -> None:
        requests.add(_Request(name, task_id, args))

    return run


class _Request:
    def __init__(self, name: str, task_id: str, args: tuple[Any, ...]) -> None:
        self.name, self.id, self.args = name, task_id, args
        self.kwargs: dict[str, Any] = {}


def held(app: Celery) -> Any:
    return redlock_held(SimpleNamespace(app=app))


def release(app: Celery, key: str, task_id: str) -> Any:
    return redlock_release(SimpleNamespace(app=app, hostname="celery@host"), key, task_id)


# ---- which locks are shown


def test_the_lock_of_a_running_task_is_shown(
    app: Celery, node: OneNode, new_task: NewTask, running: Running
) -> None:
    new_task()
    running("t", "task-1")
    node.acquire("t", ttl=30.0, label="task-1")
    node.clock.move(10.0)
    assert held(app) == [{"task": "t", "task_id": "task-1", "key": "t", "remaining": 20.0}]


@pytest.mark.parametrize("holder", [None, "another", "reservation"])
def test_a_lock_that_the_running_task_does_not_hold_is_not_shown(
    app: Celery, node: OneNode, new_task: NewTask, running: Running, holder: str | None
) -> None:
    new_task()
    running("t", "task-1")
    if holder == "reservation":
        node.reserve("t", 30.0, label="task-1")
    elif holder:
        node.acquire("t", ttl=30.0, label=holder)
    assert held(app) == []


def test_a_plain_task_is_not_asked_for_a_key(
    app: Celery, node: OneNode, new_task: NewTask, running: Running
) -> None:
    new_task(base=Task, name="t")
    running("t", "task-1")
    node.acquire("t", label="task-1")
    assert held(app) == []


def test_a_lock_that_can_not_be_read_does_not_hide_the_others(
    app: Celery, node: OneNode, new_task: NewTask, running: Running
) -> None:
    new_task(name="unanswered")
    new_task(name="t")
    node.unanswered.add("unanswered")
    node.acquire("t", ttl=30.0, label="task-2")
    running("unanswered", "task-1")
    running("t", "task-2")
    running("t", "task-3", "an argument that it does not take")
    shown = {one["task_id"]: one for one in held(app)}
    assert "cannot look at 'unanswered'" in shown["task-1"]["error"]
    assert shown["task-2"]["key"] == "t"
    assert set(shown["task-3"]) == {"task", "task_id", "error"}


# ---- whose lock is released


def test_a_lock_is_released_if_the_named_task_holds_it(app: Celery, node: OneNode) -> None:
    node.acquire("k", label="task-1")
    assert release(app, "k", "task-1") == {"ok": "k released, it was held by task-1"}
    assert node.owner_of("k") is None


@pytest.mark.parametrize("task_id", ["another", "", "task", "task-1@host"])
def test_a_lock_of_another_task_is_not_released(app: Celery, node: OneNode, task_id: str) -> None:
    owner = node.acquire("k", label="task-1").owner
    assert release(app, "k", task_id) == {"ok": f"k not held by {task_id}"}
    assert node.owner_of("k") == owner


def test_a_lock_that_nobody_holds_is_not_released(app: Celery) -> None:
    assert release(app, "k", "task-1") == {"ok": "k not held by task-1"}


def test_a_release_without_a_quorum_answers_with_the_reason(app: Celery, node: OneNode) -> None:
    node.acquire("k", label="task-1")
    node.is_up = False
    answer = release(app, "k", "task-1")
    assert list(answer) == ["error"]
    assert "cannot look at 'k'" in answer["error"]


@pytest.mark.parametrize("is_ahead_by", [-3600.0, -5.0, 0.0, 5.0])
def test_no_renewal_heals_a_released_lock_whatever_the_clock(
    app: Celery, monkeypatch: pytest.MonkeyPatch, is_ahead_by: float
) -> None:
    network = Network(5, monkeypatch)
    holder = network.redlock()
    lease = holder.acquire("k", ttl=30.0, label="task-1", renew=True)
    wrong = cast(Clock, SimpleNamespace(
        now=network.now, sleep=network.sleep,
        wall_us=lambda: network.wall_us() + round(is_ahead_by * 1e6),
    ))  # fmt: skip
    app_lock._redlocks[app] = network.redlock(clock=wrong)
    assert release(app, "k", "task-1") == {"ok": "k released, it was held by task-1"}
    for _ in range(3):
        network.pass_(10.0)
        holder.keeper.tick()
    assert lease.lost
    assert network.holders() == [None] * 5, "its renewal brought it back"
    assert max(network.floors()) < network.wall_us(), "tokens are ahead of the nodes' clocks"


def test_a_holder_that_changes_meanwhile_is_not_released(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(5, monkeypatch)
    redlock = app_lock._redlocks[app] = network.redlock()
    first = redlock.acquire("k", ttl=30.0, label="task-1")
    leases = []
    read = redlock.read_holder

    def read_then_change(key: str) -> LockHeld | None:
        held = read(key)
        redlock.release(first)
        leases.append(redlock.acquire("k", ttl=30.0, label="task-1"))
        return held

    monkeypatch.setattr(redlock, "read_holder", read_then_change)
    assert release(app, "k", "task-1") == {"ok": "k not held by task-1"}
    leases[0].extend()
