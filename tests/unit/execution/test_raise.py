"""`raise`: a duplicate ends as FAILURE."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import LockHeld
from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


@pytest.fixture
def task(new_task: NewTask, node: OneNode) -> Any:
    """A task whose lock another message holds for 20 s."""
    node.held["t"] = HOLDER, node.clock.now() + 20
    return new_task(lock_on_conflict="raise", lock_lifetime="until_and_while_executing")


def test_a_duplicate_fails_with_lock_held(task: Any, conflicts: Any) -> None:
    deliver(task)
    stored = task.AsyncResult("task-1")
    assert stored.state == "FAILURE"
    assert isinstance(stored.result, LockHeld)
    assert (stored.result.holder, stored.result.remaining) == ("holder@host", 20)
    assert task.runs == []
    assert [conflict["outcome"] for conflict in conflicts] == ["raise"]


def test_a_failed_duplicate_releases_its_reservation(task: Any, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **Reservation("t%next", WAITING).header)
    assert set(node.held) == {"t"}
