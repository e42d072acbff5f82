"""How an execution ends without a run: what is stored, published, logged and released."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state
from kombu.exceptions import OperationalError

from celery_redlock import DuplicateTask, LockHeld, QuorumUnavailable, SingletonTask
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, message_of
from tests.support.fakes.one_node import OneNode

HELD = LockHeld("t", "holder@host", 20.0, held_since=970.5, owner=HOLDER)
NONCE = "0123456789abcdef"
NewMessage = Callable[..., Message]


class Broken(Task):  # type: ignore[type-arg]
    """Base of a task whose messages and events no broker takes."""

    abstract = True

    def apply_async(self, *_: Any, **__: Any) -> Any:
        raise OperationalError("gone")

    def send_event(self, *_: Any, **__: Any) -> Any:
        raise OperationalError("gone")


class Monitored(Task):  # type: ignore[type-arg]
    """Base of a task that notes its events."""

    abstract = True
    sent: list[Any] = []  # noqa: RUF012 - of a class that one test makes

    def send_event(self, type_: str, *_: Any, **fields: Any) -> None:  # type: ignore[override]
        self.sent.append((type_, fields))


@pytest.fixture
def broken(new_task: NewTask) -> NewTask:
    """Make a task whose messages no broker takes: `broken(**options)`."""
    return lambda **options: new_task(base=type("Base", (SingletonTask, Broken), {}), **options)


@pytest.fixture
def monitored(new_task: NewTask) -> Any:
    """A task that notes its events in `sent`."""
    return new_task(base=type("Base", (SingletonTask, Monitored), {"sent": []}))


# --- what is decided is done ----------------------------------------------------------------------


def test_a_body_that_runs_without_a_quorum_does_not_keep_its_reservation(
    new_task: NewTask, node: OneNode
) -> None:
    """It is released before the body runs, which may take hours."""
    node.held["t"] = WAITING, 1e9
    task = new_task(lock_on_unavailable="run", lock_lifetime="until_executed")
    message = message_of(task, headers=Reservation("t", WAITING).header)
    assert outcomes.conclude(message, QuorumUnavailable("t"))
    assert node.owner_of("t") is None
    assert message.must_release is False


@pytest.mark.parametrize("policy", ["coalesce", "skip"])
def test_one_more_run_that_is_refused_stores_no_result(
    new_task: NewTask, node: OneNode, policy: str
) -> None:
    """That of its copy, which has run, stays; the policy may have changed since."""
    node.held["t%next"] = WAITING, 1e9
    message = message_of(new_task(lock_on_conflict=policy))
    message.has_result = True
    with pytest.raises(Ignore) as caught:
        outcomes.conclude(message, HELD)
    assert not isinstance(caught.value, outcomes.Skipped)
    assert message.task.AsyncResult("task-1").state == "PENDING"
    assert message.must_release is False


def test_a_message_that_is_skipped_for_the_one_that_waits_is_to_release_its_own(
    new_task: NewTask, node: OneNode
) -> None:
    node.held["t%next"] = WAITING, 1e9
    message = message_of(new_task(lock_on_conflict="coalesce"))
    with pytest.raises(outcomes.Skipped):
        outcomes.conclude(message, HELD)
    assert message.must_release


# --- a conflict is announced ----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call have been dropped lately."""
    monkeypatch.setattr(outcomes, "_drops", {})


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [("skip", "skip"), ("complete", "complete"), ("wait", "skip"), ("coalesce", "skip")],
)
def test_a_call_that_is_dropped_is_a_warning_now_and_then(
    new_task: NewTask, log: Any, policy: str, outcome: str
) -> None:
    message = message_of(new_task(lock_on_conflict=policy))
    for _ in range(3):
        outcomes.announce(message, HELD, outcome)
    assert [level for level, _ in log()] == ["WARNING", "INFO", "INFO"]


def test_each_tasks_dropped_calls_are_a_warning(new_task: NewTask, log: Any) -> None:
    tasks = [new_task(name=name) for name in ("t", "u")]
    for task in (*tasks, *tasks):
        outcomes.announce(message_of(task), HELD, "skip")
    assert [level for level, _ in log()] == ["WARNING", "WARNING", "INFO", "INFO"]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ("raise", "raise"),
        ("reschedule", "reschedule"),
        ("coalesce", "coalesce"),
        ("skip", "reschedule"),  # the nodes are split
        ("skip", "parked"),
    ],
)
def test_a_call_that_is_not_dropped_is_no_warning(
    new_task: NewTask, log: Any, policy: str, outcome: str
) -> None:
    outcomes.announce(message_of(new_task(lock_on_conflict=policy)), HELD, outcome)
    assert [level for level, _ in log()] == ["INFO"]


def test_a_conflict_is_one_line_that_names_the_holder(new_task: NewTask, log: Any) -> None:
    outcomes.announce(message_of(new_task()), HELD, "skip")
    line = (
        "lock conflict key=t task=t task_id=task-1 holder_task_id=holder holder_host=host "
        "remaining_s=20.000 outcome=skip"
    )
    assert log() == [("WARNING", line)]


def test_no_line_has_the_value_of_another_client(new_task: NewTask, log: Any) -> None:
    outcomes.announce(message_of(new_task()), LockHeld("t", owner="5b2c1f0e"), "skip")
    ((_, line),) = log()
    assert "holder_task_id=None holder_host=None" in line


def test_ids_and_hosts_with_line_breaks_make_one_line(new_task: NewTask, log: Any) -> None:
    forged = message_of(new_task(), id="a\x1b[2J\nERROR all is lost")
    owner = f"{'0' * 32}:b\r\nc@d\x9be"
    held = LockHeld("t", "b\r\nc@d\x9be", 20.0, held_since=970.5, owner=owner)
    outcomes.announce(forged, held, "skip")
    ((_, line),) = log()
    assert line.isprintable()
    assert r"task_id=a\x1b[2J\nERROR all is lost holder_task_id=b\r\nc holder_host=d\x9be" in line


def test_receivers_of_a_conflict_get_the_task_and_the_error(
    new_task: NewTask, conflicts: Any
) -> None:
    message, held = message_of(new_task()), LockHeld("t", owner=HOLDER)
    outcomes.announce(message, held, "skip")
    [told] = conflicts
    assert told["sender"] is message.task
    assert (told["task_id"], told["error"], told["outcome"]) == ("task-1", held, "skip")
    assert held.task_name == "t"
    assert told["at"] == "execution"


def test_monitors_are_sent_an_event_of_a_conflict(monitored: Any) -> None:
    outcomes.announce(message_of(monitored), HELD, "skip")
    fields = {"name": "t", "key": "t", "holder": "holder", "outcome": "skip", "retry": False}
    assert monitored.sent == [("task-deduplicated", fields)]


def test_monitors_are_sent_no_event_of_an_eager_execution(monitored: Any) -> None:
    outcomes.announce(message_of(monitored, is_eager=True), HELD, "skip")
    assert monitored.sent == []


def test_an_event_that_is_not_sent_is_logged_and_ends_nothing(
    broken: NewTask, log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes.announce(message_of(broken()), HELD, "skip")
    assert log()[1:] == [
        ("WARNING", "event not sent to monitors type=task-deduplicated task_id=task-1")
    ]
    assert caplog.records[-1].exc_info


# --- REVOKED --------------------------------------------------------------------------------------


def test_a_skipped_execution_stores_what_get_raises(new_task: NewTask) -> None:
    task = new_task()
    with pytest.raises(outcomes.Skipped) as caught:
        outcomes.store_skipped(message_of(task), HELD)
    stored = task.AsyncResult("task-1")
    assert stored.state == "REVOKED"
    assert stored.result.args == caught.value.duplicate.args
    assert str(caught.value) == str(caught.value.duplicate)
    assert stored.result.args == ("t", "holder", 20.0, task.name, "host", 970.5)


@pytest.mark.parametrize(
    ("by_task", "by_call", "is_stored"),
    [
        (False, None, True),
        (True, None, False),
        (True, False, True),
        (False, True, False),
    ],
)
def test_the_calls_ignore_result_comes_before_the_tasks(
    new_task: NewTask, by_task: bool, by_call: bool | None, is_stored: bool
) -> None:
    task = new_task(ignore_result=by_task)
    given = {} if by_call is None else {"ignore_result": by_call}
    message = message_of(task, **given)
    assert outcomes.is_result_ignored(message.task, message.request) is not is_stored
    with pytest.raises(outcomes.Skipped):
        outcomes.store_skipped(message, HELD)
    assert (task.AsyncResult("task-1").state == "REVOKED") is is_stored


@pytest.mark.parametrize("end", [partial(outcomes.store_skipped, held=HELD), outcomes.end_revoked])
@pytest.mark.parametrize("by_call", [False, True])
def test_an_ending_is_stored_as_errors_are(
    new_task: NewTask, end: Callable[[Message], None], *, by_call: bool
) -> None:
    task = new_task(ignore_result=not by_call, store_errors_even_if_ignored=True)
    message = message_of(task, **({"ignore_result": True} if by_call else {}))
    with pytest.raises(Ignore):
        end(message)
    assert task.AsyncResult("task-1").state == "REVOKED"


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_eager_result_is_stored_where_celery_stores_them(
    new_task: NewTask, is_stored: bool
) -> None:
    task = new_task(store_eager_result=is_stored)
    with pytest.raises(outcomes.Skipped):
        outcomes.store_skipped(message_of(task, is_eager=True), HELD)
    assert (task.AsyncResult("task-1").state == "REVOKED") is is_stored


def test_a_skipped_execution_does_not_call_its_errbacks(app: Celery, new_task: NewTask) -> None:
    called: list[Any] = []

    @app.task(name="errback")
    def errback(*args: Any) -> None:
        called.append(args)

    app.conf.task_always_eager = True
    message = message_of(new_task(), errbacks=[errback.s()])
    with pytest.raises(outcomes.Skipped):
        outcomes.store_skipped(message, HELD)
    assert called == []


def test_an_eager_result_of_a_skipped_execution_is_the_duplicate(
    new_task: NewTask, node: OneNode
) -> None:
    node.held["t"] = HOLDER, 1e9
    result = new_task().apply()
    assert result.state == "REVOKED"
    assert isinstance(result.result, DuplicateTask)


def test_a_skipped_member_of_a_chord_is_reported_to_it(
    new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its request, which names the chord: or its body would wait for ever."""
    reported: list[Any] = []
    message = message_of(new_task(), chord={"task": "t"})
    backend = message.task.backend
    monkeypatch.setattr(
        backend, "on_chord_part_return", lambda request, *_, **__: reported.append(request)
    )
    with pytest.raises(outcomes.Skipped):
        outcomes.store_skipped(message, HELD)
    assert reported == [message.request]


def test_a_task_that_was_revoked_during_its_wait_ends_as_celery_ends_it(
    monitored: Any, log: Any
) -> None:
    message = message_of(monitored)
    with pytest.raises(Ignore):
        outcomes.end_revoked(message)
    line = "task revoked, its wait for the lock ended key=t task=t task_id=task-1"
    assert log() == [("INFO", line)]
    fields = {"name": "t", "retry": False, "terminated": False, "signum": None, "expired": False}
    assert monitored.sent == [("task-revoked", fields)]
    stored = monitored.AsyncResult("task-1")
    assert (stored.state, stored.result.args) == ("REVOKED", ("revoked",))
    assert message.must_release is False, "a receiver of the signal does"


def test_the_result_of_a_revoked_task_is_stored_as_the_call_wants(
    new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = message_of(new_task(), ignore_result=True)
    marks: list[dict[str, Any]] = []
    monkeypatch.setattr(
        message.task.backend, "mark_as_revoked", lambda *_, **given: marks.append(given)
    )
    with pytest.raises(Ignore):
        outcomes.end_revoked(message)
    assert marks == [{"request": message.request, "store_result": False}]


# --- requeued -------------------------------------------------------------------------------------


def test_a_rescheduled_message_ends_as_retry_with_its_slot(
    new_task: NewTask, published: Any
) -> None:
    slot = Reservation("t%next", WAITING)
    expires = "2999-01-01T00:00:00+00:00"
    message = message_of(new_task(), headers={PUBLICATION_HEADER: NONCE}, expires=expires)
    with pytest.raises(Retry) as caught:
        outcomes.reschedule(message, HELD, 20.0, slot)
    assert caught.value.exc is HELD
    assert caught.value.when == pytest.approx(20.0, rel=0.11)
    [headers] = published
    assert headers[HEADER] == ["t%next", WAITING]
    assert headers[PUBLICATION_HEADER] == NONCE
    assert headers["expires"] == expires
    assert message.must_release is False, "the requeued message needs it"


@pytest.mark.parametrize("late", [True, False])
def test_a_message_that_is_not_requeued_releases_its_slot(
    broken: NewTask, node: OneNode, late: bool
) -> None:
    """Its reservation stays for the delivered message, if that one comes again."""
    node.held |= {"t": (WAITING, 1e9), "t%next": (WAITING, 1e9)}
    task = broken(acks_late=late, lock_lifetime="until_executed")
    message = message_of(task, headers=Reservation("t", WAITING).header)
    with pytest.raises(Reject if late else OperationalError):
        outcomes.reschedule(message, HELD, 20.0, Reservation("t%next", WAITING))
    assert set(node.held) == {"t"}
    assert message.must_release is not late


def test_a_message_without_a_slot_fails_by_what_kept_it_from_being_requeued(
    broken: NewTask,
) -> None:
    with pytest.raises(OperationalError):
        outcomes.reschedule(message_of(broken(acks_late=False)), HELD, 20.0, None)


def test_a_parked_copy_is_requeued_as_a_copy_that_never_expires(
    new_task: NewTask, published: Any
) -> None:
    task = new_task()
    with pytest.raises(Ignore):
        outcomes.park(message_of(task, expires="2000-01-01T00:00:00"), HELD, 20.0)
    [headers] = published
    assert (headers["id"], headers[COPY_HEADER], headers["expires"]) == ("task-1", True, None)
    assert task.AsyncResult("task-1").state == "PENDING"


def test_a_copy_that_is_not_parked_comes_again_if_acked_late(broken: NewTask) -> None:
    with pytest.raises(Reject) as caught:
        outcomes.park(message_of(broken(acks_late=True)), HELD, 20.0)
    assert caught.value.requeue  # type: ignore[attr-defined]


def test_a_copy_that_is_not_parked_is_logged_if_acked_early(
    broken: NewTask, log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Ignore):
        outcomes.park(message_of(broken(acks_late=False)), HELD, 20.0)
    line = "copy not parked, its message is acknowledged task=t task_id=task-1"
    assert log() == [("WARNING", line)]
    assert caplog.records[-1].exc_info


# --- left to another copy -------------------------------------------------------------------------


def test_a_run_that_lost_its_lease_to_a_copy_is_requeued(new_task: NewTask, log: Any) -> None:
    with pytest.raises(Reject) as caught:
        outcomes.leave_to_copy(message_of(new_task()))
    assert caught.value.args == ("another copy of this message runs", True)
    line = "lease lost to a copy, message requeued key=t task=t task_id=task-1"
    assert log() == [("INFO", line)]


def test_a_cancelled_greenlets_message_is_requeued(new_task: NewTask, log: Any) -> None:
    with pytest.raises(Reject) as caught:
        outcomes.leave_to_broker(message_of(new_task(acks_late=True)))
    assert caught.value.args == ("the worker cancelled this run", True)
    line = "run cancelled, message requeued key=t task=t task_id=task-1"
    assert log() == [("INFO", line)]


def test_a_revoked_or_acknowledged_message_is_not_requeued(
    new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = new_task(acks_late=True)
    outcomes.leave_to_broker(message_of(task, is_eager=True))
    monkeypatch.setattr(state, "revoked", {"task-1"})
    outcomes.leave_to_broker(message_of(task))
    monkeypatch.undo()
    task.acks_late = False
    outcomes.leave_to_broker(message_of(task))
