"""A worker that replaces each process as soon as that has used its memory loses no lock or task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.testing import Server
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.runs import disorders, runs_in
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

TASKS = 12


@pytest.fixture(scope="module")
def register(_has_server: None) -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def project(new_project: NewProject, register: Server) -> Project:
    # Each has used more than one KiB after its first task.
    return new_project("storm", storm_register=register.url, worker_max_memory_per_child=1)


@pytest.fixture(scope="module")
def worker(project: Project) -> Iterator[Worker]:
    worker = project.start_worker(concurrency=2)
    yield worker
    worker.kill_all()


@pytest.mark.parametrize("task", ["rescheduling", "waiting"])
def test_tasks_of_replaced_processes_run_one_after_the_other(
    project: Project, worker: Worker, key: str, task: str
) -> None:
    sent = [getattr(project.tasks, task).delay(key, "success", 0.01) for _ in range(TASKS)]
    for result in sent:
        result.get(timeout=PATIENCE)
    runs = runs_in(project.notes())
    runs = [run for run in runs if run.key == key]
    assert len(runs) == TASKS
    assert all(run.is_whole for run in runs)
    assert disorders(runs) == []
    assert len({note.pid for note in project.notes("begin", key=key)}) > TASKS / 4
    eventually(lambda: not project.holds(key))
