"""`complete`: a duplicate ends as SUCCESS with a fixed result."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


@pytest.fixture
def task(new_task: NewTask, node: OneNode) -> Any:
    """A task whose lock another message holds."""
    node.held["t"] = HOLDER, 1e9
    return new_task(
        lock_on_conflict="complete",
        lock_conflict_result="as before",
        lock_lifetime="until_and_while_executing",
    )


def test_a_duplicate_succeeds_with_the_declared_result(task: Any, conflicts: Any) -> None:
    deliver(task)
    stored = task.AsyncResult("task-1")
    assert (stored.state, stored.result) == ("SUCCESS", "as before")
    assert task.runs == []
    assert [conflict["outcome"] for conflict in conflicts] == ["complete"]


def test_a_completed_duplicate_releases_its_reservation(task: Any, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **Reservation("t%next", WAITING).header)
    assert set(node.held) == {"t"}
