"""`wait`: a duplicate that has waited long enough ends as with `skip`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError
from celery.signals import task_revoked
from celery.worker import state as worker_state

from celery_redlock import DuplicateTask
from celery_redlock.execution import kills
from celery_redlock.messages.reservation import Reservation
from celery_redlock.pools import pool_process
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
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
    assert [conflict["outcome"] for conflict in conflicts] == ["skip"]


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
    assert [conflict["outcome"] for conflict in conflicts] == ["reschedule"]


@pytest.mark.usefixtures("shutdown")
def test_an_eager_duplicate_is_skipped_though_a_shutdown_began(
    task: Any, published: Any, conflicts: Any
) -> None:
    assert task.apply().state == "REVOKED"
    assert published == []
    assert [conflict["outcome"] for conflict in conflicts] == ["skip"]


@pytest.mark.parametrize("lock_wait", [5, None])
def test_a_message_waits_no_longer_than_until_it_expires(
    new_task: NewTask, node: OneNode, lock_wait: float | None
) -> None:
    task = new_task(lock_on_conflict="wait", lock_wait=lock_wait)
    began = node.clock.now()
    node.held["t"] = HOLDER, began + 3
    deliver(task, expires=datetime.now(timezone.utc) + timedelta(seconds=2))
    assert isinstance(task.AsyncResult("task-1").result, DuplicateTask)
    assert task.runs == []
    assert began + 1 < node.clock.now() <= began + 2


def test_a_message_runs_if_the_lock_is_free_before_it_expires(task: Any, node: OneNode) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(task, expires=(datetime.now(timezone.utc) + timedelta(seconds=60)).isoformat())
    assert len(task.runs) == 1


@pytest.fixture
def revoked_signals() -> Iterator[list[dict[str, Any]]]:
    """What receivers of Celery's `task_revoked` were told."""
    told: list[dict[str, Any]] = []

    def note(**fields: Any) -> None:
        told.append(fields)

    task_revoked.connect(note)
    yield told
    task_revoked.disconnect(note)


@pytest.fixture
def revoked() -> Iterator[None]:
    """A message that was revoked after its worker had passed it on."""
    worker_state.revoked.add("task-1")
    yield
    worker_state.revoked.discard("task-1")


@pytest.mark.usefixtures("revoked")
def test_a_revoked_message_ends_its_wait(
    task: Any, node: OneNode, published: Any, conflicts: Any, revoked_signals: Any
) -> None:
    began = node.clock.now()
    ended = deliver(task)
    assert node.clock.now() == began
    assert ended.info.state == "IGNORED"
    stored = task.AsyncResult("task-1")
    assert stored.state == "REVOKED"
    assert isinstance(stored.result, TaskRevokedError)
    assert (task.runs, published, conflicts) == ([], [], [])
    [told] = revoked_signals
    assert (told["sender"], told["request"].id) == (task, "task-1")
    assert (told["terminated"], told["signum"], told["expired"]) == (False, None, False)


STAMPED = {"stamped_headers": ["shop"], "stamps": {"shop": ["books"]}}


@pytest.fixture
def revoked_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of two shops were revoked after their worker had passed them on."""
    monkeypatch.setitem(worker_state.revoked_stamps, "shop", ["shoes", "books"])


@pytest.mark.usefixtures("revoked_stamp")
@pytest.mark.parametrize("value", [["toys", "books"], "books"])
def test_a_message_revoked_by_a_stamp_ends_its_wait(task: Any, value: object) -> None:
    deliver(task, **{**STAMPED, "stamps": {"shop": value}})
    assert isinstance(task.AsyncResult("task-1").result, TaskRevokedError)
    assert task.runs == []


@pytest.mark.usefixtures("revoked_stamp")
@pytest.mark.parametrize(
    "changed",
    [
        {"stamps": {"shop": ["toys"]}}, {"stamps": {"town": ["books"]}}, {"stamps": {"shop": None}},
        {"stamps": ["books"]}, {"stamped_headers": 5}, {"stamped_headers": None},
    ],
)  # fmt: skip
def test_a_message_with_another_stamp_waits(task: Any, node: OneNode, changed: Any) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(task, **{**STAMPED, **changed})
    assert len(task.runs) == 1


@pytest.mark.usefixtures("revoked_stamp")
def test_the_main_process_knows_who_is_revoked_by_a_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    received = SimpleNamespace(request_dict=STAMPED)
    monkeypatch.setitem(worker_state.requests, "task-1", received)
    assert kills.is_received_and_revoked("task-1")
    assert not kills.is_received_and_revoked("task-2")
    assert not kills.is_received_and_revoked(None)


@pytest.mark.usefixtures("revoked")
def test_a_revoked_message_does_not_run_when_the_lock_is_free(task: Any, node: OneNode) -> None:
    """Revoked in the last moment of its wait, which its next request would end."""
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(task)
    assert task.AsyncResult("task-1").state == "REVOKED"
    assert task.runs == []


@pytest.mark.usefixtures("revoked")
def test_a_revoked_message_releases_its_reservation(new_task: NewTask, node: OneNode) -> None:
    task = new_task(lock_on_conflict="wait", lock_wait=5, lock_lifetime="until_and_while_executing")
    node.held["t"] = HOLDER, node.clock.now() + 20
    node.held["t%next"] = WAITING, 1e9
    deliver(task, **Reservation("t%next", WAITING).header)
    assert node.owner_of("t%next") is None
    assert node.owner_of("t") == HOLDER
