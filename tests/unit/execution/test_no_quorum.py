"""Without a quorum: what `lock_on_unavailable` makes of an execution, and what is logged."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import Ignore, Retry

from celery_redlock import QuorumUnavailable
from celery_redlock.execution import no_quorum, outcomes
from celery_redlock.messages.headers import COPY_HEADER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import Reservation
from celery_redlock.signals import lock_unavailable
from tests.support.fakes.forged import WAITING, NewTask, deliver, message_of
from tests.support.fakes.one_node import OneNode

RESERVED = Reservation("t%next", WAITING).header
ERROR = QuorumUnavailable("t", {"127.0.0.1:1": "down"}, 1)


@pytest.fixture
def task_for(new_task: NewTask, node: OneNode) -> NewTask:
    """Make a task whose lock has no quorum, while its pending slot has one."""

    def new(policy: str, **options: Any) -> Any:
        node.unanswered.add("t")
        node.held["t%next"] = WAITING, 1e9
        lifetime = "until_and_while_executing"
        return new_task(lock_on_unavailable=policy, lock_lifetime=lifetime, **options)

    return new


def test_reschedule_requeues_the_message_for_five_seconds(
    task_for: NewTask, node: OneNode, published: Any
) -> None:
    task = task_for("reschedule")
    ended = deliver(task, **RESERVED)
    assert task.AsyncResult("task-1").state == "RETRY"
    assert ended.info.retval.when == pytest.approx(5.0, rel=0.11)
    [headers] = published
    renewed = node.owner_of("t%next")
    assert renewed not in (None, WAITING)
    assert headers[HEADER] == ["t%next", renewed]
    assert task.runs == []


def test_raise_fails_the_task_and_releases_its_reservation(
    task_for: NewTask, node: OneNode, published: Any
) -> None:
    task = task_for("raise")
    deliver(task, **RESERVED)
    stored = task.AsyncResult("task-1")
    assert stored.state == "FAILURE"
    assert isinstance(stored.result, QuorumUnavailable)
    assert node.held == {}
    assert published == []
    assert task.runs == []


def test_run_runs_without_a_token_and_releases_the_reservation(
    task_for: NewTask, node: OneNode, log: Any
) -> None:
    task = task_for("run")
    deliver(task, **RESERVED)
    assert task.AsyncResult("task-1").state == "SUCCESS"
    assert task.runs == [None]
    assert node.held == {}
    assert [level for level, _ in log()] == ["ERROR"]


def test_an_eager_execution_fails_since_it_has_no_queue(
    task_for: NewTask, node: OneNode, published: Any
) -> None:
    result = task_for("reschedule").apply()
    assert result.state == "FAILURE"
    assert isinstance(result.result, QuorumUnavailable)
    assert published == []


@pytest.mark.parametrize("policy", ["reschedule", "raise"])
def test_a_copy_is_parked_and_its_stored_result_untouched(
    task_for: NewTask, published: Any, log: Any, policy: str
) -> None:
    task = task_for(policy)
    deliver(task, delivery_info={"redelivered": True})
    assert task.AsyncResult("task-1").state == "PENDING"
    [headers] = published
    assert headers[COPY_HEADER] is True
    assert headers["expires"] is None
    [(level, line)] = log()
    assert level == "ERROR"
    assert "outcome=parked" in line


def test_a_copy_runs_without_a_lock_if_the_policy_is_run(task_for: NewTask, published: Any) -> None:
    task = task_for("run")
    deliver(task, delivery_info={"redelivered": True})
    assert task.runs == [None]
    assert published == []


def test_receivers_and_monitors_are_told_what_becomes_of_it(
    new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    events: list[tuple[Any, ...]] = []

    def note(signal: Any, **fields: Any) -> None:
        told.append(fields)

    monkeypatch.setattr(
        no_quorum, "send_event", lambda *args, **fields: events.append((*args, fields))
    )
    message = message_of(new_task(lock_on_unavailable="run"))
    lock_unavailable.connect(note)
    try:
        outcomes.conclude(message, ERROR)
    finally:
        lock_unavailable.disconnect(note)
    about = {"sender": message.task, "task_id": "task-1", "error": ERROR, "outcome": "run"}
    assert told == [about]
    event = (message.delivery, "task-lock-unavailable")
    assert events == [(*event, {"key": "t", "outcome": "run"})]


@pytest.mark.parametrize(("redelivered", "ending"), [(True, Ignore), (False, Retry)])
def test_what_comes_back_names_the_reason(
    new_task: NewTask, redelivered: bool, ending: type[Exception]
) -> None:
    message = message_of(new_task(), redelivered=redelivered)
    with pytest.raises(ending) as caught:
        outcomes.conclude(message, ERROR)
    assert caught.value.__cause__ is ERROR


def test_only_the_first_of_many_is_logged_as_an_error(task_for: NewTask, log: Any) -> None:
    task = task_for("run")
    for number in range(3):
        deliver(task, id=f"task-{number}")
    assert [level for level, _ in log()] == ["ERROR", "DEBUG", "DEBUG"]
    assert log()[0][1] == (
        "no quorum key=t task=t task_id=task-0 outcome=run count=1 error=cannot lock 't': "
        "0 of 1 nodes answered, 1 is needed (127.0.0.1:1: down)"
    )


def test_the_end_is_logged_once_by_the_next_grant(
    task_for: NewTask, node: OneNode, log: Any
) -> None:
    task = task_for("run")
    deliver(task)
    deliver(task)
    node.unanswered.clear()
    deliver(task)
    deliver(task)
    assert [line for line in log() if "back" in line[1]] == [("WARNING", "quorum is back count=2")]


def test_the_end_of_nothing_is_not_logged(new_task: NewTask, log: Any) -> None:
    no_quorum.announce_over()
    assert log() == []


def test_a_conflict_over_the_slot_does_not_end_as_unavailable(
    task_for: NewTask, node: OneNode, published: Any
) -> None:
    """Another message holds the slot by now: this one is requeued without it."""
    task = task_for("reschedule")
    node.held["t%next"] = f"{'2' * 32}~:other@host", 1e9
    message = message_of(task, headers=RESERVED)
    with pytest.raises(Retry):
        outcomes.conclude(message, ERROR)
    assert task.AsyncResult("task-1").state == "PENDING"
    [headers] = published
    assert headers[HEADER] == ["t%next", WAITING]
