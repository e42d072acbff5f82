"""However many tasks it runs, and however they end, a worker has no more open than before."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.inventory import Inventory, inventory_of
from tests.support.processes.project import Project
from tests.support.processes.workers import POOLS, Worker, kill_process

MOST_ROUNDS = 12
NAMES = [count.name for count in fields(Inventory)]
TASKS = 40
KILLS = 1
SAME_SAMPLES, SAME_SECONDS = 5, 1.0
"""What no longer changes is seen so often, for so long."""
ENDINGS = ["return"] * 5 + ["raise", "retry", "ignore", "reject", "requeue"]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@pytest.fixture(params=POOLS)
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=4)
    yield worker
    worker.kill_all()


def run_many(project: Project, seed: str) -> None:
    """Run tasks with random endings, some of them duplicates of others."""
    chance = random.Random(seed)
    for _ in range(TASKS // 20):
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
        assert result.get(timeout=PATIENCE) == "done"


def work(project: Project, worker: Worker, seed: str) -> None:
    if worker.pool == "prefork":
        kill_some(project, seed)
    run_many(project, seed)


def settled(project: Project, worker: Worker) -> Inventory:
    """Return what the worker has once that no longer changes."""
    broker_port = urlsplit(str(project.conf["broker_url"])).port or 0
    seen: list[tuple[float, Inventory]] = []

    def is_settled() -> bool:
        with suppress(psutil.Error):  # a child has ended meanwhile
            inventory = inventory_of(worker.pid, broker_port)
            if seen and seen[-1][1] != inventory:
                seen.clear()
            seen.append((time.monotonic(), inventory))
        return len(seen) >= SAME_SAMPLES and seen[-1][0] - seen[0][0] > SAME_SECONDS

    eventually(is_settled, "it has settled")
    return seen[-1][1]


def counts(seen: list[Inventory], name: str) -> list[int]:
    return [getattr(inventory, name) for inventory in seen]


def is_growing(seen: list[Inventory], name: str) -> bool:
    """Tell whether there has been more of it after each round than after the one before."""
    return all(later > earlier for earlier, later in pairwise(counts(seen, name)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_worker_does_not_grow(project: Project, worker: Worker, key: str) -> None:
    seen: list[Inventory] = []
    # What is made once, when so many tasks first want it at one moment, is not made in every round.
    while growing := [name for name in NAMES if is_growing(seen, name)]:
        assert len(seen) < MOST_ROUNDS, {name: counts(seen, name) for name in growing}
        work(project, worker, f"{key}-{len(seen)}")
        seen.append(settled(project, worker))
    assert project.holds(key) == []
