"""A task that kills its process each time is not run for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project

LIMIT = 3
BROKERS: dict[str, dict[str, Any]] = {
    "redis": {},
    "rabbitmq classic": {"task_default_queue_type": "classic"},
    "rabbitmq quorum": {"task_default_queue_type": "quorum"},
}


@pytest.fixture(params=BROKERS)
def project(request: pytest.FixtureRequest, new_project: NewProject) -> Iterator[Project]:
    url = None if request.param == "redis" else request.getfixturevalue("rabbitmq")
    conf = BROKERS[request.param]
    project = new_project("redelivered", broker=url, redlock_max_deliveries=LIMIT, **conf)
    project.start_worker(concurrency=2)
    yield project
    project.ask_workers_to_end()
    for worker in project.workers:
        worker.stop()


@pytest.mark.long
def test_a_task_that_kills_its_process_is_redelivered_so_often(project: Project, key: str) -> None:
    [worker] = project.workers
    result = project.tasks.deadly.delay(key)
    worker.wait_for_line(f"delivered too often.*{result.id}")
    # It is the last one, not one of many; another task with that lock runs.
    assert isinstance(project.tasks.plain.delay(key).get(timeout=PATIENCE), int)
    eventually(lambda: project.queue_length() == 0)
    assert len(project.notes("begin", task_id=result.id)) == LIMIT + 1
    assert len(worker.lines("delivered too often")) == 1
    assert not project.is_held(key)
