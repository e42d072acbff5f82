"""`celery redlock end` on real workers: the run ends, its lock is free, it does not come back."""

from __future__ import annotations

from typing import Any

import pytest
from celery.exceptions import TaskRevokedError

from celery_redlock import LeaseLost
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.commands import run_with
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@pytest.fixture(scope="module")
def on_rabbitmq(new_project: NewProject, rabbitmq: str) -> Project:
    return new_project("endings", broker=rabbitmq)


def begin(project: Project, key: str) -> tuple[Any, str]:
    """Start a run of a task with acks_late and reject_on_worker_lost; return its result and key."""
    result = project.tasks.late.delay(key, key)
    project.run_of(result.id)
    eventually(lambda: project.votes(result.id) == len(project.nodes))
    return result, f"{project.tasks.late.name}:{key}"


def end(project: Project, key: str, *words: str) -> Any:
    return run_with(project.app, "end", key, "--reason", "stuck", "--yes", *words)


def check_that_it_does_not_come_back(project: Project, worker: Any, key: str) -> None:
    """Restart the worker: a message that is not acknowledged comes again."""
    project.open(key)
    worker.stop()
    again = project.start_worker(pool=worker.pool, concurrency=2)
    assert project.tasks.early.delay(f"{key}-after").get(timeout=PATIENCE) == "done"
    assert len(project.notes("begin", key=key)) == 1
    again.stop()


@pytest.mark.parametrize(
    ("signal", "broker"),
    [
        ("TERM", "project"),
        ("KILL", "on_rabbitmq"),
        pytest.param("KILL", "project", marks=pytest.mark.long),
        pytest.param("TERM", "on_rabbitmq", marks=pytest.mark.long),
    ],
)
def test_a_prefork_run_is_terminated_and_does_not_come_back(
    request: pytest.FixtureRequest, key: str, broker: str, signal: str
) -> None:
    project = request.getfixturevalue(broker)
    worker = project.start_worker(concurrency=2)
    result, name = begin(project, key)
    other, _ = begin(project, f"{key}-other")
    ran = end(project, name, "--signal", signal)
    assert ran.output.endswith("\nEnded: nobody has the lock now.\n")
    assert ran.exit_code == 0
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    assert result.state == "REVOKED"
    assert project.votes(other.id) == len(project.nodes), "another run was ended"
    project.open(f"{key}-other")
    assert other.get(timeout=PATIENCE) == "done"
    check_that_it_does_not_come_back(project, worker, key)


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_a_run_in_a_thread_or_greenlet_fails_and_says_who_ended_it(
    project: Project, key: str, pool: str
) -> None:
    worker = project.start_worker(pool=pool, concurrency=2)
    result, name = begin(project, key)
    ran = end(project, name)
    assert ran.output.endswith("\nEnded: nobody has the lock now.\n")
    with pytest.raises(LeaseLost, match=r"its run was ended by \S+@\S+: stuck$"):
        result.get(timeout=PATIENCE)
    assert result.state == "FAILURE"
    check_that_it_does_not_come_back(project, worker, key)


@pytest.mark.long
def test_a_solo_worker_does_not_hear_it(project: Project, key: str) -> None:
    worker = project.start_worker(pool="solo")
    result, name = begin(project, key)
    ran = end(project, name)
    assert "\nStill held: no worker has answered that it runs it." in ran.output
    assert "solo pool hears no command" in ran.output
    assert ran.exit_code == 1
    project.open(key)
    assert result.get(timeout=PATIENCE) == "done"
    worker.stop()
