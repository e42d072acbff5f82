"""What strikes while a lock is given back, or told of, leaves no lock behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.endings import LIMIT_S
from tests.support.judges.wiretap import Wiretap
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("interrupted")


@pytest.fixture(scope="module", params=["prefork", "threads"])
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    # One process or thread: what it is left with, the next task finds.
    worker = project.start_worker(pool=request.param, concurrency=1)
    yield worker
    worker.kill_all()


prefork = pytest.mark.parametrize("worker", ["prefork"], indirect=True)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_release_that_is_interrupted_is_made_up_for(
    project: Project, worker: Worker, key: str, moment: str
) -> None:
    result = project.tasks.interrupted.delay(key, moment)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=PATIENCE)
    assert project.votes(result.id) <= 1, "a quorum is free before the result is stored"
    eventually(lambda: not project.holds(key), within=LIMIT_S)
    assert project.tasks.ordinary.delay().get(timeout=PATIENCE) is True
    # Nobody renews what was given back.
    with Wiretap(project.nodes.urls) as tap:
        assert project.tasks.quick.delay(key).get(timeout=PATIENCE) is None
        assert project.holds(key) == []
    assert tap.commands("EVALSHA", f"interrupted:{key}") == []


@prefork
@pytest.mark.parametrize("task", ["surviving", "plain_surviving"])
def test_a_process_that_survives_a_tasks_exit_releases_its_lock(
    project: Project, worker: Worker, key: str, task: str
) -> None:
    result = getattr(project.tasks, task).delay(key)
    assert result.get(timeout=PATIENCE) == "done"
    project.wait_for_note("survived", key=key)
    eventually(lambda: not project.holds(key), within=LIMIT_S)


def test_locks_while_the_main_process_is_paused_cost_nothing(project: Project, key: str) -> None:
    worker = project.start_worker(concurrency=1)
    result = project.tasks.churning.delay(key, key, 50)
    project.wait_for_note("begin", key=key)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        project.open(key)
        project.wait_for_note("churned", key=key)
        assert {hold.task_id for hold in project.holds(key)} == {result.id}
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    # Longer than the ttl of the others. Whoever still believes in one tries to renew it, and would
    # take it for lost.
    time.sleep(4)
    project.open(f"{key}-2")
    assert result.get(timeout=PATIENCE) == [False]
    assert project.holds(key) == []
    assert worker.lines("ERROR|CRITICAL") == []
