"""A message that ends in a worker without a run leaves no reservation; the keeper learns of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from billiard.exceptions import WorkerLostError
from celery import Celery, states
from celery.exceptions import TimeLimitExceeded
from celery.local import maybe_evaluate
from kombu import Exchange, Queue
from kombu.exceptions import DecodeError

from celery_redlock.config import app_lock
from celery_redlock.execution import kills
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER, SERIALIZER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.origin import ORIGIN, Origin
from celery_redlock.redlock.lease import new_owner
from celery_redlock.worker import signal_handlers
from tests.support.fakes.forged import (
    RESERVED_PERIOD,
    WAITING,
    NewTask,
    context_of,
    message_of,
)
from tests.support.fakes.one_node import OneNode
from tests.support.fakes.one_worker import OneWorker

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

    delivery_info: dict[str, Any]
    hostname: str
    message: Any

    def __init__(self, headers: dict[str, Any], task: Any) -> None:
        self.request_dict = headers
        self.task = task


def received(task: Any) -> Any:
    """Have the main process receive a message with a reservation."""
    headers = {"id": "task-1", "task": task.name, **RESERVED}
    request = Received(headers, task)
    signal_handlers._on_received(request=request)
    return request


# --- a process that died, or will be killed -------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "will_be_redelivered", "is_released"),
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
    will_be_redelivered: bool,
    is_released: bool,
) -> None:
    task = declare(lock_lifetime="until_executed", **options)
    request = received(task)
    signal_handlers._on_failure(task, task_id="task-1", exception=error)
    assert outcomes == [("task-1", will_be_redelivered)]
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


@pytest.mark.parametrize("will_be_redelivered", [False, True])
def test_a_killed_greenlet_learns_how_its_task_has_ended(
    declare: NewTask, monkeypatch: pytest.MonkeyPatch, will_be_redelivered: bool
) -> None:
    settled: list[str] = []
    monkeypatch.setattr(kills, "settle_killed", settled.append)
    options = {"acks_late": True, "acks_on_failure_or_timeout": not will_be_redelivered}
    task = declare(**options)
    signal_handlers._on_failure(task, task_id="task-1", exception=TimeLimitExceeded(1))
    signal_handlers._on_failure(task, exception=TimeLimitExceeded(1))
    assert settled == ([] if will_be_redelivered else ["task-1"])


# --- a message that does not run ------------------------------------------------------------------


def test_a_revoked_message_releases_its_reservation(declare: NewTask, node: OneNode) -> None:
    task = declare(lock_lifetime="until_executed")
    signal_handlers._on_revoked(task, request=context_of(RESERVED))
    assert node.owner_of("t") is None


@pytest.mark.parametrize("headers", [None, {}, {HEADER: ["another", WAITING]}], ids=str)
def test_a_revoked_message_without_a_reservation_releases_nothing(
    declare: NewTask, node: OneNode, headers: Any
) -> None:
    task = declare(lock_lifetime="until_executed")
    signal_handlers._on_revoked(task, request=context_of(headers))
    signal_handlers._on_revoked(task)
    assert node.owner_of("t") == WAITING


@pytest.mark.parametrize("lifetime", ["until_expired", "until_executed"])
@pytest.mark.parametrize(("owner", "stays"), [(RESERVED_PERIOD, True), (WAITING, False)])
def test_a_revoked_message_does_not_end_its_period(
    declare: NewTask, node: OneNode, lifetime: str, owner: str, stays: bool
) -> None:
    """Whether it is one, the owner says, not the lifetime that the task has by now."""
    node.held["t"] = owner, 1e9
    task = declare(lock_lifetime=lifetime)
    signal_handlers._on_revoked(task, request=context_of({HEADER: ["t", owner]}))
    assert (node.owner_of("t") == owner) is stays


def test_a_message_that_can_not_run_here_releases_its_reservation(
    app: Celery, node: OneNode
) -> None:
    for message in (None, SimpleNamespace(), SimpleNamespace(headers=None)):
        signal_handlers._on_unrunnable(SimpleNamespace(app=app), message=message)
    assert node.owner_of("t") == WAITING
    message = SimpleNamespace(headers={"task": "t", **RESERVED})
    signal_handlers._on_unrunnable(SimpleNamespace(app=app), message=message)
    assert node.owner_of("t") is None


def test_a_pending_slot_without_a_quorum_stays_and_is_logged(
    declare: NewTask, node: OneNode, log: Any
) -> None:
    """An earlier delivery may have renewed it, so its own owner is not enough."""
    task = declare(lock_lifetime="until_and_while_executing")
    node.unanswered.add("t%next")
    headers = {HEADER: ["t%next", WAITING], COPY_HEADER: True}
    signal_handlers._on_revoked(task, request=context_of(headers))
    said = "reservation not released, it expires by its ttl key=t%next"
    assert [line.partition(" error=cannot ")[:2] for _, line in log()] == [
        (f"{said} count={count}", " error=cannot ") for count in (1, 2)
    ]


def test_a_message_is_noted_with_its_serializer_and_its_queue(declare: NewTask) -> None:
    request = Received({"id": "task-1"}, declare())
    request.delivery_info = {"exchange": "bank", "routing_key": "calls"}
    request.hostname, request.message = "w1@host", SimpleNamespace(delivery_info={})
    queue = Queue("calls-1", Exchange("bank"), "calls")
    consumer = SimpleNamespace(task_consumer=SimpleNamespace(queues=[queue]))
    signal_handlers._on_received(sender=consumer, request=request)
    assert request.request_dict[SERIALIZER] == "json"
    assert request.request_dict[ORIGIN] == Origin("calls-1")


class Unreadable:
    """A message of protocol 1 whose body can't be decoded."""

    def __init__(self, **headers: Any) -> None:
        self.headers = headers
        self.is_decoded = False

    @property
    def payload(self) -> Any:
        self.is_decoded = True
        raise DecodeError


@pytest.mark.parametrize(
    ("payload", "is_released"),
    [({"task": "t"}, True), ({"task": "u"}, False), ({}, False), (None, False), ("t", False)],
)
def test_a_message_of_protocol_1_has_the_name_of_its_task_in_the_body(
    app: Celery, node: OneNode, payload: object, is_released: bool
) -> None:
    signal_handlers.release_unrunnable(app, Unreadable(**RESERVED))
    assert node.owner_of("t") == WAITING
    signal_handlers.release_unrunnable(app, SimpleNamespace(headers=RESERVED, payload=payload))
    assert (node.owner_of("t") is None) is is_released


def test_a_message_without_a_reservation_is_not_decoded(app: Celery) -> None:
    message = Unreadable()
    signal_handlers.release_unrunnable(app, message)
    assert not message.is_decoded


def test_a_message_of_protocol_1_that_this_worker_does_not_know_releases_its_reservation(
    app: Celery, node: OneNode, declare: NewTask
) -> None:
    task = declare(lock_lifetime="until_executed")
    app.conf.task_protocol = 1
    worker = OneWorker(app)
    del node.held["t"]
    task.apply_async()
    assert node.owner_of("t") is not None
    worker.forget(task)
    worker.work()
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


def test_a_plain_tasks_request_gets_nothing_of_ours(app: Celery) -> None:
    def body() -> None:
        """Do nothing."""

    plain = maybe_evaluate(app.task(name="plain")(body))
    request: Any = Received({"id": "task-1", "task": "plain"}, plain)
    signal_handlers._on_received(request=request)
    assert request.request_dict == {"id": "task-1", "task": "plain"}


# --- a slot that a dead worker had renewed --------------------------------------------------------

SLOT = {HEADER: ["t%next", WAITING]}
RENEWED = new_owner("task-1", publication="0123456789abcdef", is_reservation=True)


def revoke(task: Any, *, redelivered: bool, headers: dict[str, Any] = SLOT) -> None:
    headers = {PUBLICATION_HEADER: "0123456789abcdef", **headers}
    request = context_of(headers, id="task-1", delivery_info={"redelivered": redelivered})
    signal_handlers._on_revoked(task, request=request)


@pytest.mark.parametrize("redelivered", [True, False])
def test_a_revoked_message_releases_the_slot_that_a_dead_worker_renewed(
    declare: NewTask, node: OneNode, redelivered: bool
) -> None:
    """Delivered again, it carries the owner from before."""
    node.held["t%next"] = RENEWED, 1e9
    revoke(declare(lock_lifetime="until_and_while_executing"), redelivered=redelivered)
    assert (node.owner_of("t%next") is None) is redelivered
    assert node.owner_of("t") == WAITING


def test_a_revoked_message_spares_the_slot_of_another(declare: NewTask, node: OneNode) -> None:
    other = new_owner("task-2", is_reservation=True)
    node.held["t%next"] = other, 1e9
    revoke(declare(lock_lifetime="until_and_while_executing"), redelivered=True)
    assert node.owner_of("t%next") == other


def test_a_revoked_message_without_a_slot_looks_for_none(
    declare: NewTask, node: OneNode, log: Any
) -> None:
    node.unanswered.add("t%next")
    revoke(declare(lock_lifetime="until_executed"), redelivered=True, headers=RESERVED)
    assert node.owner_of("t") is None
    assert log() == []
