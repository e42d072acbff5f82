"""`coalesce`: one duplicate waits in the queue for the holder to end, later ones are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER, REDELIVERED
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.redlock.errors import LockHeld
from celery_redlock.redlock.lease import is_reservation, new_owner
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"


@pytest.fixture
def task(new_task: NewTask, node: OneNode) -> Any:
    """A task whose lock another message holds for 20 s."""
    node.held["t"] = HOLDER, node.clock.now() + 20
    return new_task(lock_on_conflict="coalesce")


def becoming(conflicts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(conflict["error"].key, conflict["outcome"]) for conflict in conflicts]


def test_the_first_duplicate_is_requeued_with_the_pending_slot(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    ended = deliver(task)
    assert task.AsyncResult("task-1").state == "RETRY"
    assert ended.info.retval.exc.owner == HOLDER
    [headers] = published
    owner = node.owner_of("t%next")
    assert is_reservation(owner)
    assert headers[HEADER] == ["t%next", owner]
    assert becoming(conflicts) == [("t", "coalesce")]


@pytest.mark.parametrize(("age", "pause"), [(0.1, 0.25), (8, 2), (3600, 20)])
def test_a_pending_message_pauses_for_a_quarter_of_the_age(
    task: Any, node: OneNode, age: float, pause: float
) -> None:
    node.began["t"] = node.clock.now() - age
    ended = deliver(task)
    assert ended.info.retval.when == pytest.approx(pause, rel=0.11)


def test_a_message_that_yields_to_a_pending_run_comes_back_soon(
    task: Any, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message that held the pending slot has released it meanwhile."""
    del node.held["t"]
    seen = LockHeld("t%next", "waiting@host", 60.0, owner=WAITING)
    monkeypatch.setattr(node, "read_holder", lambda key: seen)
    ended = deliver(task)
    assert ended.info.retval.when == pytest.approx(0.25, rel=0.11)


@pytest.mark.parametrize("headers", [{}, {COPY_HEADER: REDELIVERED}], ids=["new", "redelivered"])
def test_a_later_duplicate_is_skipped_for_the_pending_message(
    task: Any, node: OneNode, published: Any, conflicts: Any, headers: Any
) -> None:
    """So is one whose earlier run died: the pending message's run covers it as well."""
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE, **headers})
    stored = task.AsyncResult("task-1")
    assert stored.state == "REVOKED"
    assert (stored.result.key, stored.result.holder) == ("t%next", "waiting")
    assert published == []
    assert node.owner_of("t%next") == WAITING
    assert becoming(conflicts) == [("t%next", "skip")]


def test_a_duplicate_is_requeued_without_a_contended_slot(
    task: Any, node: OneNode, published: Any
) -> None:
    """No message is known to hold the slot: skipped, the event would be lost."""
    node.held["t%next"] = WAITING, 1e9
    node.split.add("t%next")
    deliver(task)
    assert task.AsyncResult("task-1").state == "RETRY"
    [headers] = published
    assert HEADER not in headers


def test_a_second_copy_of_the_pending_message_is_discarded(
    task: Any, node: OneNode, published: Any, conflicts: Any, log: Any
) -> None:
    owner = new_owner("task-1", publication=NONCE, is_reservation=True)
    node.held["t%next"] = owner, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE})
    assert task.AsyncResult("task-1").state == "PENDING"
    assert node.owner_of("t%next") == owner
    assert (published, conflicts) == ([], [])
    line = "message handled by another copy, copy discarded key=t task=t task_id=task-1"
    assert ("INFO", line) in log()


def test_a_message_is_requeued_for_the_rest_of_its_own_slot(
    task: Any, node: OneNode, published: Any
) -> None:
    """A node that its renewals have not reached names an earlier owner; there is no other copy."""
    owner = new_owner("task-1", publication=NONCE, is_reservation=True)
    node.held["t%next"] = owner, 1e9
    node.split.add("t%next")
    deliver(task, **{PUBLICATION_HEADER: NONCE})
    assert task.AsyncResult("task-1").state == "RETRY"
    assert len(published) == 1


def test_a_redelivered_duplicate_replaces_its_earlier_slot(task: Any, node: OneNode) -> None:
    earlier = new_owner("task-1", publication=NONCE, is_reservation=True)
    node.held["t%next"] = earlier, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE, COPY_HEADER: True})
    assert task.AsyncResult("task-1").state == "RETRY"
    assert node.owner_of("t%next") not in (None, earlier)


def test_a_duplicate_without_a_quorum_for_its_slot_is_requeued(
    task: Any, node: OneNode, published: Any, conflicts: Any, log: Any
) -> None:
    node.unanswered.add("t%next")
    ended = deliver(task)
    assert task.AsyncResult("task-1").state == "RETRY"
    assert ended.info.retval.when == pytest.approx(5.0, rel=0.11)
    assert conflicts == []
    [(level, line)] = log()
    assert level == "ERROR"
    assert line.startswith("no quorum key=t%next task=t task_id=task-1 outcome=reschedule")


def test_an_eager_duplicate_is_skipped_as_coalesce(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    assert task.apply().state == "REVOKED"
    assert published == []
    assert node.owner_of("t%next") is None
    assert becoming(conflicts) == [("t", "coalesce")]
