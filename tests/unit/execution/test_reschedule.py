"""`reschedule`: a duplicate goes back to its queue."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from celery.contrib.abortable import AbortableTask

from celery_redlock import DuplicateTask, SingletonTask
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


class Abortable(SingletonTask[..., Any], AbortableTask):  # type: ignore[type-arg]
    """A singleton task that can be aborted."""

    abstract = True


@pytest.fixture
def task(new_task: NewTask) -> Any:
    return new_task(
        lock_on_conflict="reschedule", lock_ttl=30, lock_lifetime="until_and_while_executing"
    )


def test_a_duplicate_is_requeued_with_its_id_and_retries(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    ended = deliver(task, retries=2)
    assert task.AsyncResult("task-1").state == "RETRY"
    assert ended.info.retval.exc.owner == HOLDER
    [headers] = published
    assert (headers["id"], headers["retries"]) == ("task-1", 2)
    assert task.runs == []
    assert [conflict["outcome"] for conflict in conflicts] == ["reschedule"]


@pytest.mark.parametrize(("age", "pause"), [(0.1, 0.25), (8, 4), (3600, 30)])
def test_a_duplicate_pauses_for_half_the_holder_s_age(
    task: Any, node: OneNode, age: float, pause: float
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 30
    node.began["t"] = node.clock.now() - age
    ended = deliver(task)
    assert ended.info.retval.when == pytest.approx(pause, rel=0.11)


def test_a_requeued_message_carries_a_renewed_pending_slot(
    task: Any, node: OneNode, published: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **Reservation("t%next", WAITING).header)
    [headers] = published
    renewed = node.owner_of("t%next")
    assert renewed not in (None, WAITING)
    assert headers[HEADER] == ["t%next", renewed]


def test_an_eager_duplicate_is_skipped_as_reschedule(
    task: Any, node: OneNode, published: Any, conflicts: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    result = task.apply()
    assert result.state == "REVOKED"
    assert isinstance(result.result, DuplicateTask)
    assert published == []
    assert [conflict["outcome"] for conflict in conflicts] == ["reschedule"]


def test_an_aborted_duplicate_is_requeued_and_stays_aborted(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    task = new_task(base=Abortable, lock_on_conflict="reschedule")
    node.held["t"] = HOLDER, 1e9
    deliver(task)
    assert task.AsyncResult("task-1").state == "RETRY"
    task.AsyncResult("task-1").abort()
    deliver(task)
    assert task.AsyncResult("task-1").is_aborted()
    assert [headers["id"] for headers in published] == ["task-1"] * 2


def test_a_requeued_message_retries_if_abortion_is_unknown(
    new_task: NewTask,
    node: OneNode,
    published: Any,
    log: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = new_task(base=Abortable, lock_on_conflict="reschedule")
    node.held["t"] = HOLDER, 1e9
    monkeypatch.setattr(Abortable, "is_aborted", Mock(side_effect=ConnectionError))
    deliver(task)
    assert task.AsyncResult("task-1").state == "RETRY"
    assert len(published) == 1
    line = "abortion unknown, state replaced task=t task_id=task-1 state=RETRY"
    assert ("WARNING", line) in log()
    [record] = [record for record in caplog.records if record.getMessage() == line]
    assert record.exc_info
