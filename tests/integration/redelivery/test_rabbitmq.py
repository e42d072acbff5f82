"""RabbitMQ delivers at once what was not acknowledged when a connection ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery.result import AsyncResult

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.faults.redelivery import Watch
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.versions import SPARES_BUSY_PROCESSES

QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"task_default_queue_type": "quorum"},
    # Only with such an exchange does Celery let the broker keep a message until its eta.
    "quorum, delayed by the broker": {
        "task_default_queue_type": "quorum",
        "task_default_exchange_type": "topic",
    },
}


@pytest.fixture(scope="module")
def proxy(rabbitmq: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(rabbitmq).port or 5672) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=QUEUES)
def project(
    request: pytest.FixtureRequest, new_project: NewProject, rabbitmq: str, proxy: Proxy
) -> Iterator[Project]:
    """A project with a worker whose connection to the broker can be broken."""
    project = new_project(
        "redelivered",
        broker=rabbitmq,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,
        **QUEUES[request.param],
    )
    address = urlsplit(rabbitmq)
    netloc = f"{address.username}:{address.password}@127.0.0.1:{proxy.port}"
    url = address._replace(netloc=netloc).geturl()
    project.start_worker(env={"CELERY_BROKER_URL": url}, concurrency=5)
    yield project
    project.leave_rabbitmq(rabbitmq)


def runs(project: Project, result: AsyncResult[Any]) -> list[Note]:
    return project.notes("begin", task_id=result.id)


def test_a_broken_connection_neither_repeats_nor_loses_what_runs(
    project: Project, key: str, proxy: Proxy
) -> None:
    [worker] = project.workers
    result = project.tasks.plain.delay(key, key)
    project.run_of(result.id)
    with Watch(project, result.id) as watch:
        for count in range(1, 3):
            proxy.reset()
            worker.wait_for_line("Connection to broker lost", count=count)
            worker.wait_for_line("Connected to amqp", count=count + 1)
            if SPARES_BUSY_PROCESSES:
                worker.wait_for_line(f"task_id={result.id} .*outcome=parked", count=count)
            else:
                worker.wait_for_line(rf"{result.id}\] received", count=count + 1)
        project.open(key)
        assert isinstance(result.get(timeout=PATIENCE), int)
        worker.wait_for_line(
            f"message handled by another copy, copy discarded.*task_id={result.id}"
        )
        eventually(lambda: project.queue_length() == 0)
    assert len(runs(project, result)) == 1
    assert watch.states == ["SUCCESS"]


def test_tasks_of_a_killed_worker_run_again_exactly_once(project: Project, key: str) -> None:
    other = project.start_worker(concurrency=5)
    results = [project.tasks.plain.delay(f"{key}-{number}", key) for number in range(4)]
    pids = {result: project.run_of(result.id).pid for result in results}
    lost = [result for result in results if pids[result] in other.children()]
    other.kill()
    for result in lost:
        project.wait_for_note("begin", task_id=result.id, count=2)
    project.open(key)
    for result in results:
        assert result.get(timeout=PATIENCE) == runs(project, result)[-1].token
        tokens = [run.token or 0 for run in runs(project, result)]
        assert len(tokens) == (2 if result in lost else 1)
        assert tokens == sorted(set(tokens))
    assert lost
    eventually(lambda: project.queue_length() == 0)


# --- messages that go back to the queue -----------------------------------------------------------


def test_each_of_many_calls_of_one_key_that_are_put_off_runs(project: Project, key: str) -> None:
    [worker, *_] = project.workers
    # RabbitMQ delays by powers of two of a second, each in a queue of its own; a message whose
    # headers say that it was in one before is dropped there, as one that goes in circles.
    first = project.tasks.rescheduling.delay(key, key)
    project.run_of(first.id)
    others = [project.tasks.rescheduling.delay(key) for _ in range(11)]
    for result in others:
        worker.wait_for_line(f"task_id={result.id} .*outcome=reschedule", count=3)
    project.open(key)
    for result in (first, *others):
        assert isinstance(result.get(timeout=PATIENCE), int)
    assert [len(runs(project, result)) for result in (first, *others)] == [1] * 12


def test_a_coalesced_call_is_put_off_in_whole_seconds(project: Project, key: str) -> None:
    # It looks after about a second; RabbitMQ's delays are of whole seconds, and at least one.
    first = project.tasks.coalescing.delay(key, key)
    project.run_of(first.id)
    second = project.tasks.coalescing.delay(key)
    project.workers[0].wait_for_line(f"task_id={second.id} .*outcome=coalesce", count=4)
    project.open(key)
    assert isinstance(second.get(timeout=PATIENCE), int)
    assert project.workers[0].lines(f"{second.id}.*reject requeue=True") == []
