"""RabbitMQ under a resource alarm: it reads nothing from who publishes, and goes on delivering."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.brokers import RabbitMQ
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="module")
def project(broker: RabbitMQ, new_project: NewProject) -> Project:
    # In this order: a project is closed while its broker is there.
    project = new_project("retried", broker=broker.url, worker_prefetch_multiplier=1)
    project.start_worker(concurrency=len(project.tasks.tasks))
    return project


@pytest.mark.long
def test_an_alarm_neither_loses_nor_doubles_what_is_retried(
    project: Project, broker: RabbitMQ, key: str
) -> None:
    [worker] = project.workers
    results = {
        kind: task.delay(f"{key}-{kind}", [None, key], {})
        for kind, task in project.tasks.tasks.items()
    }
    for result in results.values():
        project.wait_for_note("begin", task_id=result.id, retries=1)
    broker.set_alarm(is_on=True)
    try:
        project.open(key)
        for (_, is_late), result in results.items():
            if is_late:
                worker.wait_for_line(rf"{result.id}\] reject requeue=True")
    finally:
        broker.set_alarm(is_on=False)
    for kind, result in results.items():
        assert result.get(timeout=PATIENCE) == 2
        eventually(lambda kind=kind: not project.holds(f"{key}-{kind}"))  # type: ignore[misc]
    eventually(lambda: project.queue_length() == 0)
    for (_, is_late), result in results.items():
        tries = [note.more["retries"] for note in project.notes("begin", task_id=result.id)]
        assert tries == [0] + [1] * (tries.count(1) if is_late else 1) + [2]


@pytest.mark.long
def test_a_call_that_an_alarm_refuses_gives_its_reservation_back(
    project: Project, broker: RabbitMQ, key: str
) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, False]
    how: dict[str, Any] = {"retry": False, "confirm_timeout": 1.0}
    with project.app.connection_for_write() as connection:
        connection.transport_options = {"confirm_publish": True}
        with connection.Producer() as producer:
            broker.set_alarm(is_on=True)
            try:
                with pytest.raises(OperationalError):
                    task.apply_async((key, [], {}), producer=producer, **how)
                assert not project.is_held(key)
            finally:
                broker.set_alarm(is_on=False)
    assert task.delay(key, [], {}).get(timeout=PATIENCE) == 0
