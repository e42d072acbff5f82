"""A message that is to go back to the queue while the broker can't be written to is not lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from celery.result import AsyncResult

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.integration.redelivery.conftest import Brokers, writing_through_proxy
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.processes.project import Project

PROCESSES = 4


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def brokers(request: pytest.FixtureRequest, new_project: NewProject) -> Iterator[Brokers]:
    """A project whose worker reads from its broker, but writes to it through a proxy."""
    url = None if request.param == "redis" else request.getfixturevalue("rabbitmq")
    project = new_project("retried", broker=url, worker_prefetch_multiplier=1)
    with writing_through_proxy(project, PROCESSES) as brokers:
        yield brokers


def connect_each_process(project: Project, key: str) -> None:
    """Have each pool process publish a message: a retry of a task that all execute at once."""
    task = project.tasks.tasks[Lifetime.WHILE_EXECUTING, False]
    results = [task.delay(f"{key}-{number}", [key], {}) for number in range(PROCESSES)]
    for result in results:
        project.wait_for_note("begin", task_id=result.id, retries=0)
    project.open(key)
    for result in results:
        assert result.get(timeout=PATIENCE) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "fault", ["refused", "hanging", "cut before it arrives", "cut after it arrived"]
)
@pytest.mark.parametrize("acknowledged", ["early", "late"])
def test_what_can_not_be_written_at_first_is_not_lost(
    project: Project, proxy: Proxy, key: str, acknowledged: str, fault: str
) -> None:
    task, [worker] = project.tasks.rescheduling[acknowledged], project.workers
    connect_each_process(project, f"{key}-connected")
    with redlock_of(project.app).lock(f"{task.name}:{key}", ttl=30):
        # A copy that arrives during the fault takes a process, too. So all three come before.
        project.app.control.cancel_consumer(project.queue, reply=True)
        waiting = [task.delay(key) for _ in range(3)]
        way = proxy.requests if "before" in fault else proxy.replies
        before = way.reads
        if fault == "refused":
            proxy.refuse()
            proxy.reset()
        elif fault == "hanging":
            proxy.half_open()
        else:
            way.holds = True
        project.app.control.add_consumer(project.queue)
        eventually(
            lambda: all(is_being_published(project, one) for one in waiting), "each is on its way"
        )
        if fault.startswith("cut"):
            # One chunk of each: nobody sends more before that is answered.
            eventually(lambda: way.reads - before >= len(waiting), "each has written")
        elif acknowledged == "late":
            for result in waiting:
                worker.wait_for_line(rf"{result.id}\] reject requeue=True")
        proxy.reset()
        proxy.heal()
        eventually(
            lambda: not any(is_being_published(project, one) for one in waiting), "each has arrived"
        )
    for result in waiting:
        assert isinstance(result.get(timeout=PATIENCE), int)
    eventually(lambda: project.queue_length() == 0)
    assert [len(project.notes("begin", task_id=one.id)) for one in waiting] == [1] * 3


def is_being_published(project: Project, result: AsyncResult[Any]) -> bool:
    """Tell whether a worker's last word of the message is that it publishes it again."""
    seen = [note.event for note in project.notes(published=result.id) if note.pid != os.getpid()]
    return seen[-1:] == ["publishing"]
