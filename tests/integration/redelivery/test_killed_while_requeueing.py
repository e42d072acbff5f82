"""A process is killed when its message's place in line was renewed, and is not in the queue yet."""

from __future__ import annotations

import pytest
from celery.exceptions import WorkerLostError

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.endings import LIMIT_S
from tests.support.judges.nodes import expire_on, holders_on, take_on
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("redelivered")
    project.start_worker(concurrency=1)
    return project


def test_the_place_of_a_message_that_died_is_free(project: Project, key: str) -> None:
    task = project.tasks.queueing
    lock = f"{task.name}:{key}"
    take_on(project.nodes, lock, "somebody else")
    lost = task.delay(key)
    with pytest.raises(WorkerLostError):
        lost.get(timeout=PATIENCE)
    eventually(
        lambda: holders_on(project.nodes, f"{lock}%next") == [None] * 3,
        "the place is free, an hour before its ttl",
        within=LIMIT_S,
    )
    expire_on(project.nodes, lock)
    following = task.delay(key)
    assert following.id != lost.id
    assert isinstance(following.get(timeout=PATIENCE), int)
