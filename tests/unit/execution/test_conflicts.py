"""The choice among the policies: copies are parked, and contended locks are tried again."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redlock.config.options import OnConflict
from celery_redlock.messages import requeue
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
OWN = new_owner("task-1", publication=NONCE)
POLICIES = [policy.value for policy in OnConflict]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_of_the_running_message_is_parked_by_any_policy(
    new_task: NewTask, node: OneNode, published: Any, conflicts: Any, policy: str
) -> None:
    task = new_task(lock_on_conflict=policy)
    node.held["t"] = OWN, node.clock.now() + 20
    deliver(task, **{PUBLICATION_HEADER: NONCE}, retries=2)
    assert task.AsyncResult("task-1").state == "PENDING"
    [headers] = published
    assert (headers["id"], headers["retries"], headers[COPY_HEADER]) == ("task-1", 2, True)
    assert [conflict["outcome"] for conflict in conflicts] == ["parked"]
    assert task.runs == []


def test_a_parked_copy_pauses_for_half_the_age_of_its_run(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(
        requeue, "requeue_message", lambda _, after, *__, **___: pauses.append(after)
    )
    task = new_task()
    node.held["t"] = OWN, node.clock.now() + 20
    for age in (0.1, 8, 3600):
        node.began["t"] = node.clock.now() - age
        deliver(task, **{PUBLICATION_HEADER: NONCE})
    assert pauses == pytest.approx([0.25, 4, 20])


@pytest.mark.parametrize("policy", ["skip", "complete", "raise", "wait"])
@pytest.mark.parametrize("is_reservation", [False, True])
def test_the_same_id_published_again_leaves_the_result_to_the_holder(
    new_task: NewTask,
    node: OneNode,
    published: Any,
    conflicts: Any,
    policy: str,
    is_reservation: bool,
) -> None:
    """It is a call of its own, which the policy ends: but its result is that of the holder."""
    task = new_task(lock_on_conflict=policy, lock_wait=1 if policy == "wait" else None)
    owner = new_owner("task-1", publication=NONCE, is_reservation=is_reservation)
    node.held["t"] = owner, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE[::-1]})
    assert task.AsyncResult("task-1").state == "PENDING"
    assert [conflict["outcome"] for conflict in conflicts] == ["skip"]
    assert (task.runs, published) == ([], [])


@pytest.mark.parametrize("policy", ["skip", "complete", "raise"])
def test_the_same_id_published_again_leaves_its_canvas_as_it_is(
    app: Celery, new_task: NewTask, node: OneNode, published: Any, policy: str, monkeypatch: Any
) -> None:
    """The holder may be of the same canvas, as a step of a chain that was published twice."""
    counted: list[object] = []
    monkeypatch.setattr(
        app.backend, "on_chord_part_return", lambda *given, **_: counted.append(given)
    )
    task = new_task(lock_on_conflict=policy)
    step = task.si().set(task_id="step-2")
    chord = task.si().set(task_id="body")
    node.held["t"] = OWN, 1e9
    deliver(
        task, **{PUBLICATION_HEADER: NONCE[::-1]}, group="g",
        embed={"chain": [step], "chord": chord, "callbacks": [step], "errbacks": [step]},
    )  # fmt: skip
    assert (task.runs, published, counted) == ([], [], [])
    assert task.AsyncResult("step-2").state == "PENDING"


@pytest.mark.parametrize("policy", ["reschedule", "coalesce"])
def test_the_same_id_published_again_runs_later_if_the_policy_says_so(
    new_task: NewTask, node: OneNode, published: Any, policy: str
) -> None:
    task = new_task(lock_on_conflict=policy)
    node.held["t"] = OWN, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE[::-1]})
    [headers] = published
    assert headers[PUBLICATION_HEADER] == NONCE[::-1]
    assert COPY_HEADER not in headers


def test_an_eager_execution_with_the_holders_id_is_not_parked(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    task = new_task()
    node.held["t"] = OWN, 1e9
    result = task.apply(task_id="task-1", headers={PUBLICATION_HEADER: NONCE})
    assert result.state == "REVOKED"
    assert published == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_contended_lock_is_tried_again_unless_raise(
    new_task: NewTask, node: OneNode, published: Any, policy: str
) -> None:
    options = {"lock_wait": 1} if policy == "wait" else {}
    task = new_task(lock_on_conflict=policy, **options)
    node.held["t"] = HOLDER, node.clock.now() + 20
    node.split.add("t")
    deliver(task)
    is_raise = policy == "raise"
    assert task.AsyncResult("task-1").state == ("FAILURE" if is_raise else "RETRY")
    assert len(published) == (0 if is_raise else 1)
    assert set(node.held) == {"t"}, "coalesce reserves no slot"
