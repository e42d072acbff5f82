"""A task that is revoked while it waits for its lock does not run, whatever the pool."""

from __future__ import annotations

import pytest
from celery.exceptions import TaskRevokedError

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.nodes import take_on
from tests.support.judges.wiretap import Wiretap
from tests.support.processes.project import Project

LONG_S = 600.0


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("redelivered")


# Not solo: its one thread waits, and hears of nothing meanwhile.
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_revoked_task_ends_its_wait_for_the_lock(project: Project, key: str, pool: str) -> None:
    worker = project.start_worker(pool=pool, concurrency=1)
    task = project.tasks.waiting_long
    take_on(project.nodes, f"{task.name}:{key}", "somebody else", ttl=LONG_S)
    with Wiretap(project.nodes.urls) as tap:
        result = task.delay(key)
        # More than once of each node.
        eventually(lambda: len(tap.commands("EVALSHA", key)) > len(project.nodes), "it waits")
    # With greenlets, a worker may hear of commands a moment after it has said that it is ready.
    eventually(lambda: project.app.control.revoke(result.id, reply=True), "it is told")
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    # Celery may store the result before.
    worker.wait_for_line(f"task revoked, its wait for the lock ended.*task_id={result.id}")
    following = project.tasks.plain.delay(key)
    assert isinstance(following.get(timeout=PATIENCE), int)
    assert project.notes("begin", task_id=result.id) == []
    worker.kill_all()
