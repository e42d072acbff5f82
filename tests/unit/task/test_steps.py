"""Steps of a canvas whose run is repeated: published twice under one task id, each runs once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.local import maybe_evaluate

from celery_redlock import SingletonTask
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.messages.headers import (
    COPY_HEADER,
    ONCE_MORE_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    STEP_HEADER,
)
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
AGAIN: dict[str, Any] = {COPY_HEADER: REDELIVERED}
POLICIES = [policy.value for policy in OnConflict]
RUNNING = Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_EXECUTED, Lifetime.UNTIL_AND_WHILE_EXECUTING
Published = list[dict[str, Any]]
Chained = Callable[..., Published]


@pytest.fixture
def first(app: Celery) -> Any:
    """A task without a lock, whose message comes again if its worker dies."""

    @app.task(name="first", acks_late=True)
    def first() -> None:
        pass

    return maybe_evaluate(first)


@pytest.fixture
def chained(published: Published) -> Chained:
    """Run a task that a step follows, as often as its message is delivered.

    `chained(task, step, *deliveries)` returns the headers of the step's messages; a delivery is
    what differs in the headers of the task's message.
    """

    def run(task: Any, step: Any, *deliveries: dict[str, Any]) -> Published:
        signature = maybe_evaluate(step).si()
        signature.freeze("step-1")
        before = len(published)
        for delivery in deliveries:
            deliver(task, **{"id": "first-1", "chain": [dict(signature)], **delivery})
        return published[before:]

    return run


def received(headers: dict[str, Any]) -> dict[str, Any]:
    """Return those headers of a published step by which its worker knows it."""
    return {name: headers[name] for name in ("id", PUBLICATION_HEADER, STEP_HEADER)}


@pytest.mark.parametrize("lifetime", RUNNING)
def test_a_step_that_is_published_again_is_one_publication(
    first: Any, new_task: NewTask, chained: Chained, lifetime: Lifetime
) -> None:
    sent = chained(first, new_task(lock_lifetime=lifetime.value), {}, AGAIN)
    assert [(one["id"], one[STEP_HEADER]) for one in sent] == [("step-1", True)] * 2
    assert sent[0][PUBLICATION_HEADER] == sent[1][PUBLICATION_HEADER] != ""


@pytest.mark.parametrize("base", [SingletonTask, None])
def test_the_body_of_a_chord_is_one_publication(
    app: Celery, new_task: NewTask, node: OneNode, published: Published, base: Any
) -> None:
    """Celery publishes it in the last task of the header, or in one of its own."""
    body: Any = maybe_evaluate(new_task()).si()
    body.freeze("body-1")

    @app.task(name="unlock", acks_late=True, **({"base": base} if base else {}))
    def unlock() -> None:
        body.clone().delay()

    for delivery in ({}, AGAIN):
        deliver(unlock, id="unlock-1", **{PUBLICATION_HEADER: NONCE}, **delivery)
        node.done.clear()  # the worker dies before it has left the mark
    assert [one["id"] for one in published] == ["body-1"] * 2
    assert published[0][PUBLICATION_HEADER] == published[1][PUBLICATION_HEADER]


@pytest.mark.parametrize(
    "other",
    [
        {"id": "first-2"},
        {PUBLICATION_HEADER: NONCE[::-1]},
        {ONCE_MORE_HEADER: NONCE},
        {"x-death": [{"queue": "work", "reason": "rejected", "count": 1}]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_step_of_another_run_is_another_publication(
    first: Any, new_task: NewTask, chained: Chained, other: dict[str, Any]
) -> None:
    given = {PUBLICATION_HEADER: NONCE}
    one, another = chained(first, new_task(), given, given | other)
    assert one[PUBLICATION_HEADER] != another[PUBLICATION_HEADER]


def test_two_steps_of_one_run_are_two_publications(
    app: Celery, new_task: NewTask, published: Published
) -> None:
    steps = [maybe_evaluate(new_task(name=name)).si() for name in "tu"]
    for step in steps:
        step.freeze()

    @app.task(name="first", acks_late=True)
    def first() -> None:
        for step in steps:
            step.delay()

    deliver(first)
    assert published[0][PUBLICATION_HEADER] != published[1][PUBLICATION_HEADER]


@pytest.mark.parametrize(
    ("early", "lifetime"),
    [(True, Lifetime.WHILE_EXECUTING), (False, Lifetime.UNTIL_EXPIRED)],
)
def test_a_step_that_no_mark_could_tell_is_an_ordinary_message(
    first: Any, new_task: NewTask, chained: Chained, early: bool, lifetime: Lifetime
) -> None:
    """A task that is acknowledged early does not run again, and a throttle leaves no marks."""
    first.acks_late = not early
    one, another = chained(first, new_task(lock_lifetime=lifetime.value), {}, AGAIN)
    assert STEP_HEADER not in one | another
    assert one[PUBLICATION_HEADER] != another[PUBLICATION_HEADER]


def test_a_retry_of_a_lost_worker_publishes_the_same_step(
    first: Any, new_task: NewTask, chained: Chained
) -> None:
    first.acks_late, first.retry_on_worker_lost = False, True
    one, another = chained(first, new_task(), {}, {"retries": 1})
    assert one[PUBLICATION_HEADER] == another[PUBLICATION_HEADER]


def test_calls_of_a_body_with_one_task_id_are_two_publications(
    app: Celery, new_task: NewTask, published: Published
) -> None:
    """They were published on purpose: each is to run."""
    step = maybe_evaluate(new_task())

    @app.task(name="first", acks_late=True)
    def first() -> None:
        for _ in range(2):
            step.apply_async(task_id="step-1")

    deliver(first)
    one, another = published
    assert STEP_HEADER not in one | another
    assert one[PUBLICATION_HEADER] != another[PUBLICATION_HEADER]


def test_a_step_does_not_pass_its_header_on(
    app: Celery, new_task: NewTask, published: Published
) -> None:
    task, new = maybe_evaluate(new_task()), maybe_evaluate(new_task(name="u"))
    task.run = lambda: new.apply_async(headers=task.request.headers)
    deliver(task, **{STEP_HEADER: True, PUBLICATION_HEADER: NONCE, "headers": {STEP_HEADER: True}})
    assert STEP_HEADER not in published[0]


# --- what becomes of the second message -----------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_whose_first_message_runs_is_parked_by_any_policy(
    first: Any,
    new_task: NewTask,
    node: OneNode,
    chained: Chained,
    published: Published,
    policy: str,
) -> None:
    task = new_task(lock_on_conflict=policy)
    one, second = chained(first, task, {}, AGAIN)
    owner = new_owner("step-1", publication=one[PUBLICATION_HEADER])
    node.held["t"] = owner, node.clock.now() + 20
    published.clear()
    deliver(task, **received(second))
    [parked] = published
    assert (parked["id"], parked[COPY_HEADER], parked[STEP_HEADER]) == ("step-1", True, True)
    assert (task.runs, task.AsyncResult("step-1").state) == ([], "PENDING")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("acks_late", [False, True])
def test_a_step_that_has_run_is_discarded_though_another_task_runs(
    first: Any,
    new_task: NewTask,
    node: OneNode,
    chained: Chained,
    published: Published,
    policy: str,
    acks_late: bool,
) -> None:
    task = new_task(lock_on_conflict=policy, acks_late=acks_late)
    one, second = chained(first, task, {}, AGAIN)
    deliver(task, **received(one))
    assert task.AsyncResult("step-1").result == "done"
    node.held["t"] = HOLDER, node.clock.now() + 20
    stored = task.backend.get_task_meta("step-1")
    deliver(task, **received(second))
    assert (len(task.runs), len(published)) == (1, 2)
    assert task.backend.get_task_meta("step-1") == stored
