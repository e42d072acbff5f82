"""Copies of a broadcast message: each ends by the policy, and none is broadcast again."""

from __future__ import annotations

from typing import Any

import pytest
from celery.signals import after_task_publish

from celery_redlock import LockHeld, QuorumUnavailable
from celery_redlock.config.options import OnConflict
from celery_redlock.messages.headers import PUBLICATION_HEADER, publication_of
from celery_redlock.messages.origin import ORIGIN, Origin
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import HOLDER, NewTask, context_of, deliver
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
RABBITMQ, REDIS = (Origin("all.1", "all.1"), Origin("all.2", "all.2")), Origin("", "w1@host")
HEADERS = {PUBLICATION_HEADER: NONCE, "delivery_info": {"exchange": "all", "routing_key": "any"}}
STORING = ["skip", "complete", "raise"]


def owner(origin: Origin) -> str:
    """Return the owner of the run of one receiver's copy."""
    request = context_of({**HEADERS, ORIGIN: origin})
    return new_owner("task-1", publication=publication_of(request))


@pytest.fixture
def sent_to() -> Any:
    """Exchange and routing key of the messages that were published."""
    sent: list[tuple[str, str]] = []

    def note(exchange: str, routing_key: str, **_: Any) -> None:
        sent.append((exchange, routing_key))

    after_task_publish.connect(note)
    yield sent
    after_task_publish.disconnect(note)


@pytest.mark.parametrize("origin", [RABBITMQ[0], REDIS])
@pytest.mark.parametrize("policy", STORING)
def test_a_copy_that_another_receiver_runs_is_discarded(
    new_task: NewTask, node: OneNode, sent_to: Any, conflicts: Any, policy: str, origin: Origin
) -> None:
    task = new_task(lock_on_conflict=policy)
    node.held["t"] = owner(RABBITMQ[1]), 1e9
    deliver(task, **HEADERS, **{ORIGIN: origin})
    assert (sent_to, task.runs) == ([], [])
    assert len(conflicts) == 1
    # The result of that task id is the other copy's.
    assert task.AsyncResult("task-1").state == "PENDING"


@pytest.mark.parametrize("policy", ["reschedule", "coalesce"])
def test_a_copy_goes_back_to_its_receivers_own_queue(
    new_task: NewTask, node: OneNode, sent_to: Any, policy: str
) -> None:
    task = new_task(lock_on_conflict=policy)
    node.held["t"] = owner(RABBITMQ[1]), 1e9
    deliver(task, **HEADERS, **{ORIGIN: RABBITMQ[0]})
    assert (sent_to, task.runs) == ([("", "all.1")], [])


def test_a_redelivered_copy_is_parked_in_its_own_queue(
    new_task: NewTask, node: OneNode, sent_to: Any
) -> None:
    node.held["t"] = owner(RABBITMQ[0]), 1e9
    deliver(new_task(), **HEADERS, **{ORIGIN: RABBITMQ[0]})
    assert sent_to == [("", "all.1")]


def test_a_retry_of_a_copy_is_published_to_its_own_queue(new_task: NewTask, sent_to: Any) -> None:
    task = new_task()
    task.run = task.retry
    deliver(task, **HEADERS, **{ORIGIN: RABBITMQ[0]})
    assert sent_to == [("", "all.1")]
    task.run = lambda: task.retry(queue="chosen")
    deliver(task, **HEADERS, **{ORIGIN: RABBITMQ[0]})
    assert sent_to[1] == ("", "chosen")


@pytest.mark.parametrize("policy", [policy.value for policy in OnConflict])
def test_a_copy_without_a_queue_is_published_nowhere(
    new_task: NewTask, node: OneNode, sent_to: Any, policy: str
) -> None:
    task = new_task(lock_on_conflict=policy, lock_wait=5 if policy == "wait" else None)
    for holder in (HOLDER, owner(RABBITMQ[1]), owner(REDIS)):
        node.held["t"] = holder, 1e9
        deliver(task, **HEADERS, **{ORIGIN: REDIS})
    assert (sent_to, task.runs) == ([], [])


def test_another_broadcast_without_a_queue_ends_with_an_error(
    new_task: NewTask, node: OneNode
) -> None:
    task = new_task(lock_on_conflict="reschedule")
    node.held["t"] = HOLDER, 1e9
    deliver(task, **HEADERS, **{ORIGIN: REDIS})
    assert task.AsyncResult("task-1").state == "REVOKED"
    task = new_task(name="u", lock_on_conflict="raise")
    node.held["u"] = HOLDER, 1e9
    deliver(task, **{**HEADERS, "id": "task-2"}, **{ORIGIN: REDIS})
    assert isinstance(task.AsyncResult("task-2").result, LockHeld)


def test_without_a_quorum_and_a_queue_a_copy_fails(
    new_task: NewTask, node: OneNode, sent_to: Any
) -> None:
    task = new_task()
    node.unanswered.add("t")
    deliver(task, **HEADERS, **{ORIGIN: REDIS})
    assert sent_to == []
    assert isinstance(task.AsyncResult("task-1").result, QuorumUnavailable)
