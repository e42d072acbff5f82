"""What becomes of an execution whose lock another one holds."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, group
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_redlock import DuplicateTask, LockHeld
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project, disconnect


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


def test_a_skipped_task_does_not_affect_the_rest_of_its_group(project: Project, key: str) -> None:
    held(project, project.tasks.skipping, key)
    results = group(
        project.tasks.collect.si(1), project.tasks.skipping.si(key), project.tasks.collect.si(3)
    ).delay()
    ends = results.get(timeout=PATIENCE, propagate=False)
    assert [ends[0], ends[2]] == [1, 3]
    assert isinstance(ends[1], DuplicateTask)


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


def test_a_rescheduled_task_has_all_its_retries_left(project: Project, key: str) -> None:
    holder = held(project, project.tasks.failing_after_a_reschedule, key)
    later = project.tasks.failing_after_a_reschedule.delay(key)
    project.workers[0].wait_for_line(f"task_id={later.id}.*outcome=reschedule", count=2)
    project.open(key)
    assert end_of(holder) is None
    error = end_of(later)
    assert type(error).__name__ == "NotToday"
    assert len(project.notes("begin", task_id=later.id)) == 3


def test_reschedule_does_not_outlive_the_message(project: Project, key: str) -> None:
    # The holder's ttl of 30 s is longer than the message may live.
    held(project, project.tasks.rescheduling_long, key)
    later = project.tasks.rescheduling_long.apply_async((key,), expires=10)
    assert isinstance(end_of(later), TaskRevokedError)
    # It asked again while there was time, but not all the time.
    asked = project.workers[0].lines(f"task_id={later.id}.*outcome=reschedule")
    assert 2 <= len(asked) <= 20


# --- wait -----------------------------------------------------------------------------------------


def test_wait_runs_as_soon_as_the_lock_is_free(project: Project, key: str) -> None:
    holder = held(project, project.tasks.waiting, key)
    waiting = project.tasks.waiting.delay(key)
    wait_for_receipt(project, waiting.id)
    project.open(key)
    assert end_of(holder) < end_of(waiting)
    assert project.most_at_once(key=key) == 1


def wait_for_receipt(project: Project, task_id: str) -> None:
    project.workers[0].wait_for_line(rf"{task_id}\] received")
