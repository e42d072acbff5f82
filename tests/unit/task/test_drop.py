"""Reservations that somebody frees: `SingletonTask.drop`, and a worker that locks nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_redlock import QuorumUnavailable, SingletonTask
from celery_redlock.config import app_lock
from celery_redlock.messages import reservation
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.throttled_log import ThrottledLog
from tests.support.fakes.forged import RESERVED_PERIOD, deliver
from tests.support.fakes.one_node import OneNode

NewTask = Callable[..., Any]
RUNNING = f"{'0' * 32}:running@host"
WAITING = f"{'1' * 32}~:waiting@host"
RESERVING = ["until_executing", "until_executed", "until_and_while_executing", "until_expired"]


@pytest.fixture
def new_task(app: Celery) -> NewTask:
    def new(**options: Any) -> Any:
        @app.task(base=SingletonTask, name="t", lock_key="{a}", **options)
        def body(a: int, b: int = 0, *, fencing_token: int | None = None) -> int | None:
            return fencing_token

        return body

    return new


@pytest.mark.parametrize("lifetime", RESERVING)
def test_a_dropped_call_can_be_published_again(new_task: NewTask, lifetime: str) -> None:
    task = new_task(lock_lifetime=lifetime)
    lost = task.delay(1, b=2)
    other = task.delay(2)
    assert task.delay(1).id == lost.id
    assert task.drop(1, b=5), "b is not in the key"
    assert not task.drop(a=1)
    assert task.delay(1).id != lost.id
    assert task.delay(2).id == other.id


@pytest.mark.parametrize("lifetime", ["while_executing", "until_executed", "until_expired"])
def test_a_lock_under_which_a_body_runs_is_not_dropped(
    new_task: NewTask, node: OneNode, lifetime: str
) -> None:
    node.held["t:1"] = RUNNING, 1e9
    assert not new_task(lock_lifetime=lifetime).drop(1)
    assert node.owner_of("t:1") == RUNNING


def test_a_place_in_line_is_dropped(new_task: NewTask, node: OneNode) -> None:
    node.held |= {"t:1": (RUNNING, 1e9), "t:1%next": (WAITING, 1e9)}
    assert new_task(lock_on_conflict="coalesce").drop(1)
    assert node.owner_of("t:1") == RUNNING
    assert node.owner_of("t:1%next") is None


def test_a_throttle_is_dropped_after_its_run_too(new_task: NewTask) -> None:
    task = new_task(lock_lifetime="until_expired")
    deliver(task, args=(1,))
    assert task.drop(1)
    deliver(task, args=(1,))
    task.lock_lifetime = "until_executed"  # as after a deployment
    assert task.drop(1)
    assert not task.drop(1)


def test_a_drop_with_wrong_arguments_is_refused(new_task: NewTask) -> None:
    with pytest.raises(TypeError):
        new_task().drop()


def test_a_drop_without_a_quorum_says_so(new_task: NewTask, node: OneNode) -> None:
    node.is_up = False
    with pytest.raises(QuorumUnavailable):
        new_task().drop(1)


# --- a worker that locks nothing ------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", RESERVING)
def test_a_worker_that_locks_nothing_gives_reservations_back(
    new_task: NewTask, app: Celery, node: OneNode, lifetime: str
) -> None:
    task = new_task(lock_lifetime=lifetime)
    key = "t:1%next" if lifetime == "until_and_while_executing" else "t:1"
    owner = RESERVED_PERIOD if lifetime == "until_expired" else WAITING
    node.held[key] = owner, 1e9
    app.conf.redlock_enabled = False
    deliver(task, args=(1,), **{HEADER: [key, owner]})
    assert (node.owner_of(key) is None) is (lifetime != "until_expired")
    assert task.AsyncResult("task-1").state == "SUCCESS"


@pytest.mark.parametrize("trouble", ["no quorum", "no nodes"])
def test_a_worker_that_locks_nothing_says_its_trouble_once(
    new_task: NewTask,
    app: Celery,
    node: OneNode,
    trouble: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservation, "_unreleased", ThrottledLog())
    task = new_task(lock_lifetime="until_executed")
    app.conf.redlock_enabled = False
    node.is_up = False
    if trouble == "no nodes":
        del app_lock._redlocks[app]
        app.conf.redlock_nodes = None  # and neither broker nor backend is one
    caplog.set_level(logging.INFO, "celery_redlock")
    for _ in range(3):
        deliver(task, args=(1,), **{HEADER: ["t:1", WAITING]})
    said = [record.message for record in caplog.records if record.name == reservation.__name__]
    assert len(said) == 1
    assert said[0].startswith(
        "reservation not released, it expires by its ttl key=t:1 count=1 error="
    )
