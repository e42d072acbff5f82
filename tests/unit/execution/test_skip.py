"""`skip`: a duplicate ends as REVOKED, and nothing waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import DuplicateTask
from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


@pytest.fixture
def task(new_task: NewTask, node: OneNode) -> Any:
    """A task whose lock another message holds for 20 s."""
    node.held["t"] = HOLDER, node.clock.now() + 20
    return new_task(lock_lifetime="until_and_while_executing")


def test_a_skipped_message_is_stored_as_revoked(task: Any, node: OneNode) -> None:
    deliver(task)
    stored = task.AsyncResult("task-1")
    assert stored.state == "REVOKED"
    assert isinstance(stored.result, DuplicateTask)
    assert (stored.result.key, stored.result.holder) == ("t", "holder")
    assert stored.result.remaining == 20
    assert task.runs == []
    assert node.owner_of("t") == HOLDER


def test_a_skipped_message_releases_its_reservation(task: Any, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **Reservation("t%next", WAITING).header)
    assert set(node.held) == {"t"}


def test_a_skipped_message_is_announced_as_skip(task: Any, conflicts: Any) -> None:
    deliver(task)
    [conflict] = conflicts
    assert conflict["outcome"] == "skip"
    assert conflict["error"].owner == HOLDER
