"""After two hundred tasks with every ending a worker has what it had before, and no more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import pytest

from tests.support.eventually import eventually
from tests.support.inventory import Inventory, inventory_of
from tests.support.project import Project
from tests.support.workers import Worker, kill_process

from .conftest import NewProject

GET_WITHIN = 60.0
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
TASKS = 200
KILLS = 3
ENDINGS = ["return"] * 5 + ["raise", "retry", "ignore", "reject", "requeue"]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@pytest.fixture(params=POOLS)
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=4)
    yield worker
    worker.kill_all()


def run_many(project: Project, count: int, seed: str) -> None:
    """Run tasks with random endings, some of them duplicates of others."""
    chance = random.Random(seed)
    for _ in range(count // 20):
        tasks = [project.tasks.early, project.tasks.late]
        some = [
            chance.choice(tasks).delay(f"{seed}-{chance.randrange(10)}", None, how)
            for how in chance.choices(ENDINGS, k=20)
        ]
        for result in some:
            eventually(partial(is_over, project, result), f"{result} is over")


def is_over(project: Project, result: Any) -> bool:
    # Whoever ends by Ignore, or by Reject after its message was acknowledged, leaves no state.
    return result.ready() or project.queue_length() == project.unacked() == 0


def kill_some(project: Project, key: str) -> None:
    for number in range(KILLS):
        gate = f"{key}-{number}"
        result = project.tasks.late.delay(gate, gate)
        kill_process(project.run_of(result.id).pid)
        project.open(gate)
        assert result.get(timeout=GET_WITHIN) == "done"


def work(project: Project, worker: Worker, count: int, seed: str) -> None:
    if worker.pool == "prefork":
        kill_some(project, seed)
    run_many(project, count, seed)


def settled(worker: Worker) -> Inventory:
    """Return what the worker has once that no longer changes."""
    seen: list[Inventory] = []

    def is_settled() -> bool:
        with suppress(psutil.Error):  # a child has ended meanwhile
            seen.append(inventory_of(worker.pid))
        return len(seen) > 100 and len(set(seen[-100:])) == 1

    eventually(is_settled)
    return seen[-1]


def test_a_worker_does_not_grow(project: Project, worker: Worker, key: str) -> None:
    # A process that is forked later inherits more: the broker's connections.
    work(project, worker, 40, f"{key}-first")
    before = settled(worker)
    work(project, worker, TASKS, key)
    after = settled(worker)
    assert after.processes == before.processes
    assert after.threads <= before.threads
    # A connection more or less to the broker or the result backend is Celery's affair.
    assert after.descriptors <= before.descriptors + 3, worker.log_tail()
    assert after.most_of_a_child <= before.most_of_a_child + 3
    assert project.holds(key) == []
