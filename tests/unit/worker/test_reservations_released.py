"""A message that ends in a worker without a run leaves no reservation; the keeper learns of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery, states
from celery.exceptions import TimeLimitExceeded
from celery.local import maybe_evaluate

from celery_redlock.config import app_lock
from celery_redlock.execution import kills
from celery_redlock.messages.reservation import HEADER
from celery_redlock.worker import signal_handlers
from tests.support.fakes.forged import WAITING, NewTask, message_of
from tests.support.fakes.one_node import OneNode

RESERVED = {HEADER: ["t", WAITING]}


@pytest.fixture
def declare(new_task: NewTask) -> NewTask:
    """Make the task `t`, no proxy of it: `declare(**options)`."""
    return lambda **options: maybe_evaluate(new_task(**options))


@pytest.fixture(autouse=True)
def _reserved(node: OneNode) -> None:
    node.held["t"] = WAITING, 1e9


class Received:
    """A request of the main process, as far as its handlers look at it."""

    id = "task-1"
    content_type = "application/json"

    def __init__(self, headers: dict[str, Any]) -> None:
        self.request_dict = headers


def received(task: Any) -> Any:
    """Have the main process receive a message with a reservation."""
    headers = {"id": "task-1", "task": task.name, **RESERVED}
    request = Received(headers)
    signal_handlers._on_received(request=request)
    return request


# --- a process that died, or will be killed -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "comes_again", "is_released"),
    [
        ({}, TimeLimitExceeded(1), False, True),
        ({"acks_late": True}, TimeLimitExceeded(1), False, True),
        (
            {"acks_late": True, "acks_on_failure_or_timeout": False},
            TimeLimitExceeded(1),
            True,
            False,
        ),
        ({"acks_on_failure_or_timeout": False}, TimeLimitExceeded(1), False, True),
        ({"acks_late": True}, WorkerLostError(), False, True),
        (
            {"acks_late": True, "acks_on_failure_or_timeout": False},
            WorkerLostError(),
            False,
            True,
        ),
        # Its own process has done what there is to do.
        ({}, ValueError(), False, False),
    ],
    ids=str,
)
def test_a_task_that_its_process_does_not_end_is_ended_by_the_main_process(
    declare: NewTask,
    node: OneNode,
    outcomes: list[tuple[str, bool]],
    options: dict[str, Any],
    error: Exception,
    comes_again: bool,
    is_released: bool,
) -> None:
    task = declare(lock_lifetime="until_executed", **options)
    request = received(task)
    signal_handlers._on_failure(task, task_id="task-1", exception=error)
    assert outcomes == [("task-1", comes_again)]
    assert (node.owner_of("t") is None) is is_released
    del request


def test_a_message_that_this_worker_did_not_receive_releases_nothing(
    declare: NewTask, node: OneNode
) -> None:
    task = declare(lock_lifetime="until_executed")
    received(task)  # and forgotten
    signal_handlers._on_failure(task, task_id="task-1", exception=WorkerLostError())
    signal_handlers._on_failure(task, task_id="task-2", exception=WorkerLostError())
    signal_handlers._on_failure(task, exception=WorkerLostError())
    assert node.owner_of("t") == WAITING


def test_a_failure_without_a_task_has_no_outcome(
    declare: NewTask, outcomes: list[tuple[str, bool]]
) -> None:
    signal_handlers._on_failure(declare(), exception=ValueError())
    assert outcomes == []


@pytest.mark.parametrize(("terminated", "heard"), [(True, [("task-1", False)]), (False, [])])
def test_only_a_task_that_was_running_ends_by_its_termination(
    outcomes: list[tuple[str, bool]], terminated: bool, heard: list[Any]
) -> None:
    request = SimpleNamespace(id="task-1")
    signal_handlers._on_terminated(request=request, terminated=terminated)
    assert outcomes == heard


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_killed_greenlet_learns_how_its_task_has_ended(
    declare: NewTask, monkeypatch: pytest.MonkeyPatch, comes_again: bool
) -> None:
    settled: list[str] = []
    monkeypatch.setattr(kills, "settle_killed", settled.append)
    options = {"acks_late": True, "acks_on_failure_or_timeout": not comes_again}
    task = declare(**options)
    signal_handlers._on_failure(task, task_id="task-1", exception=TimeLimitExceeded(1))
    signal_handlers._on_failure(task, exception=TimeLimitExceeded(1))
    assert settled == ([] if comes_again else ["task-1"])


# --- a message that does not run ------------------------------------------------------------------


def test_a_revoked_message_releases_its_reservation(declare: NewTask, node: OneNode) -> None:
    task = declare(lock_lifetime="until_executed")
    signal_handlers._on_revoked(task, request=SimpleNamespace(headers=RESERVED))
    assert node.owner_of("t") is None


@pytest.mark.parametrize("headers", [None, {}, {HEADER: ["another", WAITING]}], ids=str)
def test_a_revoked_message_without_a_reservation_releases_nothing(
    declare: NewTask, node: OneNode, headers: Any
) -> None:
    task = declare(lock_lifetime="until_executed")
    signal_handlers._on_revoked(task, request=SimpleNamespace(headers=headers))
    signal_handlers._on_revoked(task)
    assert node.owner_of("t") == WAITING


def test_a_revoked_message_does_not_end_its_period(declare: NewTask, node: OneNode) -> None:
    task = declare(lock_lifetime="until_expired")
    signal_handlers._on_revoked(task, request=SimpleNamespace(headers=RESERVED))
    assert node.owner_of("t") == WAITING


def test_a_message_that_can_not_run_here_releases_its_reservation(
    app: Celery, node: OneNode
) -> None:
    for message in (None, SimpleNamespace(), SimpleNamespace(headers=None)):
        signal_handlers._on_unrunnable(SimpleNamespace(app=app), message=message)
    assert node.owner_of("t") == WAITING
    message = SimpleNamespace(headers={"task": "t", **RESERVED})
    signal_handlers._on_unrunnable(SimpleNamespace(app=app), message=message)
    assert node.owner_of("t") is None


def test_a_worker_without_nodes_says_what_it_can_not_release(
    app: Celery, node: OneNode, log: Any
) -> None:
    del app_lock._redlocks[app]
    app.conf.redlock_nodes = []
    signal_handlers.release_unrunnable(app, SimpleNamespace(headers={"task": "t", **RESERVED}))
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith(
        "reservation not released, it expires by its ttl key=t count=1 error=redlock_nodes"
    )


@pytest.mark.parametrize(
    ("state", "is_released"), [(states.FAILURE, True), (states.RETRY, False), (None, True)]
)
def test_a_task_that_ended_before_it_was_called_releases_its_reservation(
    declare: NewTask, node: OneNode, state: str | None, is_released: bool
) -> None:
    message = message_of(declare(lock_lifetime="until_executed"), headers=RESERVED)
    signal_handlers._on_postrun(message.task, state=state)
    assert (node.owner_of("t") is None) is is_released
