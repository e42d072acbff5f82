"""`wait`: a duplicate that has waited long enough ends as with `skip`."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.pools import pool_process
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode


@pytest.fixture
def task(new_task: NewTask, node: OneNode) -> Any:
    """A task whose lock another message holds for 20 s."""
    node.held["t"] = HOLDER, node.clock.now() + 20
    return new_task(lock_on_conflict="wait", lock_wait=5)


@pytest.fixture
def shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is being shut down."""
    monkeypatch.setattr(pool_process, "_is_shutting_down", True)


def test_a_duplicate_is_skipped_after_its_wait(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    began = node.clock.now()
    deliver(task)
    assert node.clock.now() == began + 5
    stored = task.AsyncResult("task-1")
    assert stored.state == "REVOKED"
    assert stored.result.remaining == 15
    assert published == []
    assert [conflict["becomes"] for conflict in conflicts] == ["skip"]


def test_a_message_runs_when_the_lock_is_free_within_its_wait(task: Any, node: OneNode) -> None:
    node.clock.move(16)
    deliver(task)
    assert task.AsyncResult("task-1").state == "SUCCESS"
    assert task.runs == [1]


@pytest.mark.usefixtures("shutdown")
def test_a_duplicate_is_requeued_if_a_shutdown_ends_its_wait(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    began = node.clock.now()
    deliver(task)
    assert node.clock.now() == began
    assert task.AsyncResult("task-1").state == "RETRY"
    assert [headers["id"] for headers in published] == ["task-1"]
    assert [conflict["becomes"] for conflict in conflicts] == ["reschedule"]


@pytest.mark.usefixtures("shutdown")
def test_an_eager_duplicate_is_skipped_though_a_shutdown_began(
    task: Any, published: Any, conflicts: Any
) -> None:
    assert task.apply().state == "REVOKED"
    assert published == []
    assert [conflict["becomes"] for conflict in conflicts] == ["skip"]
