"""A run loses its lease to another copy of its own message: what counts is the copy's run.

The worker stands still for longer than its lease; meanwhile a Redis broker, which took the message
for lost, has delivered it again. Both copies share one delivery tag.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE
from tests.support.faults.redelivery import Watch, capture, deliver, redeliver, wait_until_settled
from tests.support.processes.project import Project
from tests.support.processes.workers import POOLS, Worker


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("redelivered", task_acks_late=True, worker_prefetch_multiplier=1)


@pytest.fixture
def workers(project: Project, request: pytest.FixtureRequest) -> Iterator[list[Worker]]:
    """Two workers, which run one task at a time; the first has the pool of the parameter."""
    pool = getattr(request, "param", "prefork")
    both = [project.start_worker(pool=pool, concurrency=1)]
    yield both
    for worker in both:
        worker.kill_all()


def lose_the_lease_to_a_copy(project: Project, workers: list[Worker], task_id: str) -> None:
    """Let the first worker run the task and freeze; the other one runs the copy; then thaw."""
    [first] = workers
    project.run_of(task_id)
    first.pause()
    workers.append(project.start_worker(concurrency=1))
    redeliver(project, task_id)
    project.wait_for_note("begin", task_id=task_id, count=2)
    first.resume()
    first.wait_for_line(f"lease lost to a copy, message requeued.*task_id={task_id}")


@pytest.mark.parametrize("workers", POOLS, indirect=True)
def test_a_run_that_lost_to_its_copy_leaves_no_trace(
    project: Project, workers: list[Worker], key: str
) -> None:
    alarm: Any = project.tasks.give_the_alarm.si()
    message = capture(project, project.tasks.plain, key, key, link_error=alarm)
    with Watch(project, message.task_id) as watch:
        deliver(project, message)
        lose_the_lease_to_a_copy(project, workers, message.task_id)
        project.open(key)
        wait_until_settled(project)
    first, second = project.notes("begin", task_id=message.task_id)
    assert watch.states == ["SUCCESS"]
    assert project.app.AsyncResult(message.task_id).get(timeout=PATIENCE) == second.token
    assert (second.token or 0) > (first.token or 0)
    assert project.notes("alarm") == []


def test_a_task_is_not_lost_when_its_copys_worker_dies(
    project: Project, workers: list[Worker], key: str
) -> None:
    result = project.tasks.plain.delay(key, key)
    lose_the_lease_to_a_copy(project, workers, result.id)
    workers[1].kill_all()
    # What the dead worker had, be it the copy or the message that was put back, comes again.
    project.redeliver()
    third = project.wait_for_note("begin", task_id=result.id, count=3)
    project.open(key)
    assert result.get(timeout=PATIENCE) == third.token
    wait_until_settled(project)


def test_a_run_that_went_on_and_lost_to_its_copy_leaves_no_trace(
    project: Project, workers: list[Worker], key: str
) -> None:
    message = capture(project, project.tasks.going_on, key, key)
    with Watch(project, message.task_id) as watch:
        deliver(project, message)
        [first] = workers
        project.run_of(message.task_id)
        first.pause()
        workers.append(project.start_worker(concurrency=1))
        redeliver(project, message.task_id)
        second = project.wait_for_note("begin", task_id=message.task_id, count=2)
        first.resume()
        first.wait_for_line(f"lease lost under a running task.*task_id={message.task_id}")
        project.open(key)
        first.wait_for_line(f"lease lost to a copy, message requeued.*task_id={message.task_id}")
        wait_until_settled(project)
    assert watch.states == ["SUCCESS"]
    assert project.app.AsyncResult(message.task_id).get(timeout=PATIENCE) == second.token
