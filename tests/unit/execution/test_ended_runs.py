"""A run that an operator ends does not come back, whatever its body makes of the interrupt."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task, states
from celery.exceptions import Ignore, Reject, Retry

from celery_redlock import SingletonTask
from celery_redlock.execution.running import current, run_with_id
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.lease import owner_id
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

MARK = "task-1/0"
WHY = "its run was ended by alice@ops: stuck"


class Caught:
    """An interrupt that the body raises itself, when it likes."""

    def __init__(self) -> None:
        self.error: LeaseLost | None = None

    def trigger(self, error: LeaseLost | None = None) -> None:
        self.error = error

    def disarm(self) -> None: ...


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Caught:
    """The interrupt of each body."""
    caught = Caught()
    monkeypatch.setattr(interrupt, "new_interrupt", lambda: caught)
    return caught


def abort() -> None:
    run = current.get()
    assert run
    assert run.abort("alice@ops: stuck")


def run_body(app: Celery, act: Any, **options: Any) -> Any:
    """Have a worker execute a task whose body ends its own run, and then acts."""

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], acks_late=True, **options)
    def body(self: Any) -> object:
        abort()
        return act(self)

    ended = deliver(body)
    return ended.info, app.backend.get_task_meta("task-1")


def retry(task: Task[Any, Any]) -> None:
    raise task.retry(exc=LeaseLost(), countdown=0)


def raising(error: Exception) -> Any:
    def act(_task: object) -> None:
        raise error

    return act


ACTS = [raising(LeaseLost("t", "x")), raising(ValueError()), raising(Reject(requeue=True)), retry]


@pytest.mark.parametrize("act", ACTS, ids=["lost", "error", "reject", "retry"])
def test_an_ended_run_fails_and_says_who_ended_it(
    app: Celery, node: OneNode, caught: Caught, published: list[Any], act: Any
) -> None:
    info, stored = run_body(app, act)
    assert info.state == stored["status"] == states.FAILURE
    assert (type(stored["result"]), stored["result"].args) == (LeaseLost, ("t", WHY))
    assert caught.error
    assert caught.error.args == ("t", WHY)
    # A copy of its message is discarded.
    assert node.done == {("t", MARK)}
    assert node.held == {}
    assert published == []


def test_a_task_that_is_retried_for_any_error_is_not_retried(
    app: Celery, node: OneNode, caught: Caught, published: list[Any]
) -> None:
    info, _ = run_body(app, raising(LeaseLost("t", WHY)), autoretry_for=(Exception,))
    assert info.state == states.FAILURE
    assert (published, node.done) == ([], {("t", MARK)})


def test_a_body_that_returns_first_has_succeeded(
    app: Celery, node: OneNode, caught: Caught
) -> None:
    _, stored = run_body(app, lambda _: "done")
    assert (stored["status"], stored["result"]) == (states.SUCCESS, "done")
    assert node.done == {("t", MARK)}


@pytest.mark.parametrize("ending", [Ignore(), Retry()], ids=repr)
def test_what_was_published_before_stays_so(
    app: Celery, node: OneNode, caught: Caught, ending: Exception
) -> None:
    info, _ = run_body(app, raising(ending))
    assert info.state == (states.IGNORED if isinstance(ending, Ignore) else states.RETRY)


def test_only_the_task_that_is_ended_can_not_retry(
    app: Celery, node: OneNode, caught: Caught, published: list[Any]
) -> None:
    @app.task(base=SingletonTask, bind=True, name="other", lock_key=[])
    def other(self: Any) -> None: ...

    def act(_task: object) -> None:
        other.push_request(id="task-2", retries=0, called_directly=False, delivery_info={})
        try:
            with pytest.raises(Retry):
                other.retry(countdown=0)
        finally:
            other.pop_request()

    run_body(app, act)
    assert [one["id"] for one in published] == ["task-2"]


def test_a_run_that_can_not_be_interrupted_is_not_ended(
    app: Celery, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "new_interrupt", lambda: None)
    answers = []

    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        run = current.get()
        assert run
        answers.append(run.abort("alice@ops"))
        assert run.ended_by is None

    deliver(body)
    assert answers == [False]


def test_a_run_whose_body_is_over_is_not_ended(app: Celery, node: OneNode, caught: Caught) -> None:
    runs: list[Any] = []

    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        runs.append(current.get())

    deliver(body)
    assert not runs[0].abort("alice@ops")
    assert (caught.error, runs[0].ended_by) == (None, None)


def test_a_run_is_found_by_its_key_and_the_id_of_its_owner(app: Celery, node: OneNode) -> None:
    found: list[Any] = []

    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        run = current.get()
        assert run
        own = owner_id(run.lease.owner)
        found.extend(
            [run_with_id("t", own) is run, run_with_id("t", "0" * 12), run_with_id("u", own)]
        )

    deliver(body)
    assert found == [True, None, None]
