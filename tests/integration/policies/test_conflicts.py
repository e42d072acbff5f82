"""What becomes of an execution whose lock another one holds."""

from __future__ import annotations

import secrets
import socket
import uuid
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult

from celery_redlock import DuplicateTask, LockHeld
from celery_redlock.messages.headers import PUBLICATION_HEADER, CarriedNonce
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project, disconnect
from tests.support.versions import TAKES_UUIDS

"""Seconds. `get()` on a task that will never end would take for ever."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("locked")
    project.start_worker()
    return project


def held(project: Project, task: Any, key: str) -> Any:
    """Start a run of `task` that holds `key` until the gate of that name is opened."""
    result = task.delay(key, key)
    project.run_of(result.id)
    return result


def end_of(result: Any) -> Any:
    """Return what `get()` returns or raises, as soon as it does."""
    try:
        return result.get(timeout=PATIENCE)
    except Exception as error:  # noqa: BLE001 - it is what was asked for
        return error


def wait_for_state(result: Any, state: str) -> None:
    eventually(lambda: result.state == state, f"{result} is {state}, not {result.state}")


# --- skip -----------------------------------------------------------------------------------------


def test_of_twenty_messages_one_runs(project: Project, key: str) -> None:
    results = [project.tasks.skipping.delay(key, key) for _ in range(20)]
    # The nineteen end while the one runs: none of them waits for it.
    eventually(lambda: sum(result.state == "REVOKED" for result in results) == 19)
    project.open(key)
    ends = [end_of(result) for result in results]
    assert sum(isinstance(end, DuplicateTask) for end in ends) == 19
    [token] = [end for end in ends if isinstance(end, int)]
    [begin] = project.notes("begin", key=key)
    assert begin.token == token


def test_a_skipped_task_ends_as_revoked_with_a_duplicate_task(project: Project, key: str) -> None:
    holder = held(project, project.tasks.skipping, key)
    skipped = project.tasks.skipping.delay(key)
    error = end_of(skipped)
    assert isinstance(error, DuplicateTask)
    assert error.holder == holder.id
    assert error.key == f"{project.tasks.skipping.name}:{key}"
    assert 0 < error.remaining <= 30
    assert skipped.state == "REVOKED"
    assert skipped.ready()
    project.open(key)
    assert isinstance(end_of(holder), int)


def test_by_the_id_alone_one_learns_why_a_task_was_skipped(project: Project, key: str) -> None:
    holder = held(project, project.tasks.skipping, key)
    skipped = project.tasks.skipping.delay(key)
    # An app that knows nothing of the task.
    with Celery(set_as_current=False, backend=str(project.conf["result_backend"])) as stranger:
        error = end_of(AsyncResult(skipped.id, app=stranger))
        disconnect(stranger)
    assert isinstance(error, DuplicateTask)
    assert error.holder == holder.id
    assert f"task {holder.id} has held" in str(error)


def test_a_skipped_task_leaves_the_lock_to_its_holder(project: Project, key: str) -> None:
    holder = held(project, project.tasks.skipping, key)
    for _ in range(5):
        assert isinstance(end_of(project.tasks.skipping.delay(key)), DuplicateTask)
        assert project.votes(holder.id) >= 2
    project.open(key)
    end_of(holder)
    assert project.holds(key) == []
    assert len(project.notes("begin", key=key)) == 1


def test_a_task_sent_by_name_is_locked_as_any_other(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    sent = project.app.send_task(project.tasks.skipping.name, (key,))
    assert isinstance(end_of(sent), DuplicateTask)


@pytest.mark.parametrize("ignored", ["by the task", "by the call", "by the task, not by the call"])
def test_get_on_a_skipped_task_never_hangs(project: Project, key: str, ignored: str) -> None:
    task = project.tasks.skipping if ignored == "by the call" else project.tasks.forgetful
    options = {
        "by the task": {},
        "by the call": {"ignore_result": True},
        "by the task, not by the call": {"ignore_result": False},
    }[ignored]
    holder = held(project, task, key)
    skipped = task.apply_async((key,), **options)
    end = end_of(skipped)
    if options.get("ignore_result") is False:
        assert isinstance(end, DuplicateTask)
    else:
        # Celery's own get() returns at once, and nothing was stored.
        assert end is None
        project.workers[0].wait_for_line(f"task_id={skipped.id}.*outcome=skip")
        assert AsyncResult(skipped.id, app=project.app).state == "PENDING"
    project.open(key)
    eventually(lambda: not project.holds(key))
    holder.forget()


def test_neither_link_nor_link_error_of_a_skipped_task_is_called(
    project: Project, key: str
) -> None:
    holder = held(project, project.tasks.skipping, key)
    skipped = project.tasks.skipping.apply_async(
        (key,), link=project.tasks.collect.si(key), link_error=project.tasks.on_error.s()
    )
    assert isinstance(end_of(skipped), DuplicateTask)
    project.open(key)
    end_of(holder)
    # What would have been sent has been sent before this, and done by now.
    assert end_of(project.tasks.collect.delay("last")) == "last"
    assert project.notes("collect", results=key) == []
    assert project.notes("on_error", failed=skipped.id) == []


def test_the_steps_after_a_skipped_one_are_revoked(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    last: Any = chain(
        project.tasks.skipping.si(key), project.tasks.collect.s(), project.tasks.collect.s()
    ).delay()
    assert isinstance(end_of(last), DuplicateTask)
    for step in (last, last.parent, last.parent.parent):
        wait_for_state(step, "REVOKED")


def test_a_skipped_step_within_a_chain_ends_the_chain(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    last: Any = chain(
        project.tasks.collect.si(1), project.tasks.skipping.si(key), project.tasks.collect.s()
    ).delay()
    assert isinstance(end_of(last), DuplicateTask)
    assert last.parent.parent.get(timeout=PATIENCE) == 1


def test_a_chord_with_a_skipped_part_fails_at_once(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    body = chord(
        [project.tasks.collect.si(1), project.tasks.skipping.si(key)], project.tasks.collect.s()
    ).delay()
    # ChordError is the body's own; get() first looks whether the parts failed.
    assert isinstance(end_of(body), ChordError | DuplicateTask)
    wait_for_state(body, "FAILURE")
    assert "not run: task" in str(body.result)


def test_a_chain_with_a_skipped_step_fails_its_chord_at_once(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    body = chord(
        [
            project.tasks.collect.si(1),
            chain(project.tasks.skipping.si(key), project.tasks.collect.s()),
        ],
        project.tasks.collect.s(),
    ).delay()
    assert isinstance(end_of(body), ChordError | DuplicateTask)
    wait_for_state(body, "FAILURE")


def test_a_skipped_task_does_not_affect_the_rest_of_its_group(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    results = group(
        project.tasks.collect.si(1), project.tasks.skipping.si(key), project.tasks.collect.si(3)
    ).delay()
    ends = results.get(timeout=PATIENCE, propagate=False)
    assert [ends[0], ends[2]] == [1, 3]
    assert isinstance(ends[1], DuplicateTask)


def test_a_conflict_is_one_line_that_says_who_and_never_what(project: Project, key: str) -> None:
    holder = held(project, project.tasks.skipping, key)
    skipped = project.tasks.skipping.delay(key, "an-argument")
    end_of(skipped)
    [line] = project.workers[0].lines(f"lock conflict.*task_id={skipped.id}")
    # Twice a minute it is a warning.
    assert "INFO" in line or "WARNING" in line
    for field in (
        f"key={project.tasks.skipping.name}:{key}",
        f"holder_task_id={holder.id}",
        "holder_host=",
        "remaining_s=",
        "outcome=skip",
    ):
        assert field in line
    assert "an-argument" not in project.workers[0].log_text()


# --- complete, raise ------------------------------------------------------------------------------


def test_complete_ends_as_a_success_with_the_given_result(project: Project, key: str) -> None:
    holder = held(project, project.tasks.completing, key)
    duplicate = project.tasks.completing.delay(key)
    assert end_of(duplicate) == ["taken"]
    assert duplicate.state == "SUCCESS"
    project.open(key)
    [token] = end_of(holder)
    assert [note.token for note in project.notes("begin", key=key)] == [token]


def test_complete_lets_the_canvas_go_on(project: Project, key: str) -> None:
    held(project, project.tasks.completing, key)
    assert end_of(
        chain(project.tasks.completing.si(key), project.tasks.collect.s()).delay()
    ) == ["taken"]  # fmt: skip
    assert end_of(
        chord([project.tasks.completing.si(key)] * 2, project.tasks.collect.s()).delay()
    ) == [["taken"], ["taken"]]
    linked = project.tasks.completing.apply_async((key,), link=project.tasks.collect.si(key))
    end_of(linked)
    project.wait_for_note("collect", results=key)


def test_raise_ends_as_a_failure_with_who_holds_the_lock(project: Project, key: str) -> None:
    holder = held(project, project.tasks.raising, key)
    failed = project.tasks.raising.apply_async((key,), link_error=project.tasks.on_error.s())
    error = end_of(failed)
    assert failed.state == "FAILURE"
    assert isinstance(error, LockHeld)
    assert error.key == f"{project.tasks.raising.name}:{key}"
    assert error.holder == f"{holder.id}@{socket.gethostname()}"
    assert 0 < error.remaining <= 30
    assert not error.contended
    project.wait_for_note("on_error", failed=failed.id)


# --- reschedule -----------------------------------------------------------------------------------


def test_a_rescheduled_task_keeps_its_id_and_its_retries(project: Project, key: str) -> None:
    holder = held(project, project.tasks.rescheduling, key)
    later = project.tasks.rescheduling.delay(key)
    # The task has max_retries=0, so that the second time would be one too many.
    line = f"task_id={later.id}.*outcome=reschedule"
    project.workers[0].wait_for_line(line, count=3)
    wait_for_state(later, "RETRY")
    assert isinstance(later.result, LockHeld)
    project.open(key)
    assert end_of(holder) == 0
    assert end_of(later) == 0
    assert [note.task_id for note in project.notes("begin", key=key)] == [holder.id, later.id]
    assert project.most_at_once(key=key) == 1


@pytest.mark.parametrize("policy", ["reschedule", "coalesce", "parked"])
def test_a_message_tries_a_renewed_lock_long_before_its_ttl_ends(
    project: Project, key: str, policy: str
) -> None:
    # Each try after the whole rest of a lease of 30 s would take longer than the test waits.
    task = (
        project.tasks.coalescing_long if policy == "coalesce" else project.tasks.rescheduling_long
    )
    headers = {PUBLICATION_HEADER: CarriedNonce(secrets.token_hex(8))}  # of one publication
    holder = task.apply_async((key, key), headers=headers)
    project.run_of(holder.id)
    # Published again, it is the same message.
    copy = {"task_id": holder.id, "headers": headers} if policy == "parked" else {}
    later = task.apply_async((key, key), **copy)
    project.workers[0].wait_for_line(f"task_id={later.id}.*outcome={policy}", count=4)
    project.open(key)
    assert isinstance(end_of(holder), int)
    assert isinstance(end_of(later), int)


def test_what_a_caller_hides_stays_hidden_when_it_is_rescheduled(
    project: Project, key: str
) -> None:
    held(project, project.tasks.rescheduling, key)
    hidden = {"argsrepr": "(?)", "kwargsrepr": "{?}"}
    later = project.tasks.rescheduling.apply_async((), {"key": key}, **hidden)
    project.workers[0].wait_for_line(f"task_id={later.id}.*outcome=reschedule")
    project.open(key)
    assert end_of(later) == 0
    assert project.run_of(later.id).more["shown"] == ["(?)", "{?}"]


def test_a_message_keeps_its_serializer_when_it_is_rescheduled(new_project: NewProject) -> None:
    project = new_project("locked", accept_content=["json", "pickle"])
    worker = project.start_worker(concurrency=2, env={"C_FORCE_ROOT": "1"})
    holder = held(project, project.tasks.rescheduling, "key")
    not_json = PurePath("key")
    later = project.tasks.rescheduling.apply_async(("key", not_json), serializer="pickle")
    # The second time it was published by us.
    worker.wait_for_line(f"task_id={later.id}.*outcome=reschedule", count=2)
    project.open("key")
    assert holder.get(timeout=PATIENCE) == later.get(timeout=PATIENCE) == 0


def test_no_message_is_lost_by_reschedule(project: Project, key: str) -> None:
    results = [project.tasks.rescheduling.delay(key) for _ in range(10)]
    assert [end_of(result) for result in results] == [0] * 10
    assert len(project.notes("begin", key=key)) == 10
    assert project.most_at_once(key=key) == 1


def test_a_rescheduled_task_has_all_its_retries_left(project: Project, key: str) -> None:
    holder = held(project, project.tasks.failing_after_a_reschedule, key)
    later = project.tasks.failing_after_a_reschedule.delay(key)
    project.workers[0].wait_for_line(f"task_id={later.id}.*outcome=reschedule", count=2)
    project.open(key)
    assert end_of(holder) is None
    error = end_of(later)
    assert type(error).__name__ == "NotToday"
    assert len(project.notes("begin", task_id=later.id)) == 3


def test_reschedule_lets_a_canvas_wait_for_it(project: Project, key: str) -> None:
    holder = held(project, project.tasks.rescheduling, key)
    step = project.tasks.rescheduling.si(key)
    body = chord([step, project.tasks.collect.si(1)], project.tasks.collect.s()).delay()
    last: Any = chain(step, project.tasks.collect.s()).delay()
    project.workers[0].wait_for_line(f"key=.*{key} .*outcome=reschedule", count=2)
    project.open(key)
    assert end_of(body) == [0, 1]
    assert end_of(last) == 0
    end_of(holder)
    assert len(project.notes("collect", results=[0, 1])) == 1


def test_reschedule_does_not_outlive_the_message(project: Project, key: str) -> None:
    # The holder's ttl of 30 s is longer than the message may live.
    held(project, project.tasks.rescheduling_long, key)
    later = project.tasks.rescheduling_long.apply_async((key,), expires=10)
    assert isinstance(end_of(later), TaskRevokedError)
    # It asked again while there was time, but not all the time.
    asked = project.workers[0].lines(f"task_id={later.id}.*outcome=reschedule")
    assert 2 <= len(asked) <= 20


def test_reschedule_runs_within_the_life_of_the_message(project: Project, key: str) -> None:
    holder = held(project, project.tasks.rescheduling_long, key)
    later = project.tasks.rescheduling_long.apply_async((key,), expires=60)
    project.workers[0].wait_for_line(f"task_id={later.id}.*outcome=reschedule")
    project.open(key)
    end_of(holder)
    assert isinstance(end_of(later), int)


# --- wait -----------------------------------------------------------------------------------------


def test_wait_runs_as_soon_as_the_lock_is_free(project: Project, key: str) -> None:
    holder = held(project, project.tasks.waiting, key)
    waiting = project.tasks.waiting.delay(key)
    wait_for_receipt(project, waiting.id)
    project.open(key)
    assert end_of(holder) < end_of(waiting)
    assert project.most_at_once(key=key) == 1


def test_wait_ends_as_skip_when_it_was_in_vain(project: Project, key: str) -> None:
    holder = held(project, project.tasks.waiting_briefly, key)
    waiting = project.tasks.waiting_briefly.delay(key)
    error = end_of(waiting)
    assert isinstance(error, DuplicateTask)
    assert error.holder == holder.id
    assert waiting.state == "REVOKED"


def wait_for_receipt(project: Project, task_id: str) -> None:
    project.workers[0].wait_for_line(rf"{task_id}\] received")


# --- the same message twice -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, uuid.UUID] if TAKES_UUIDS else [str])
def test_a_second_copy_of_a_running_task_is_put_off(
    project: Project, key: str, kind: Callable[[str], Any]
) -> None:
    task_id = kind(str(uuid.uuid4()))
    headers = {PUBLICATION_HEADER: CarriedNonce(secrets.token_hex(8))}  # of one publication
    running = project.tasks.brief.apply_async((key, key), task_id=task_id, headers=headers)
    project.run_of(str(task_id))
    project.tasks.brief.apply_async((key, key), task_id=task_id, headers=headers)
    project.workers[0].wait_for_line(f"task_id={task_id} holder_task_id={task_id}.*outcome=parked")
    # Neither skipped nor rescheduled: the state that people see is still that of the run.
    assert running.state in ("PENDING", "STARTED")
    project.open(key)
    assert isinstance(end_of(running), int)
    assert project.most_at_once(key=key) == 1
