"""A process of the prefork pool is killed before anybody was told of the lease that it was granted.

The nodes are behind proxies, which hold back what the process asks for, or the nodes' replies.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import WorkerLostError

from celery_redlock.testing import Servers
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.endings import LIMIT_S
from tests.support.processes.behind_proxies import BehindProxies, behind_proxies
from tests.support.processes.workers import is_alive, kill_process


@pytest.fixture(scope="module")
def nodes(new_nodes: NewNodes) -> Servers:
    return new_nodes(3)


@pytest.fixture
def scene(new_project: NewProject, nodes: Servers) -> Iterator[BehindProxies]:
    """A worker of this test's own: a second after a death the main process releases once more.

    If the nodes were held then, it would wait for them, and not see the next death.
    """
    # Who waits for a reply waits until it is killed.
    with behind_proxies(new_project, nodes, "endings", redlock_node_timeout=40.0) as scene:
        yield scene


def assert_it_goes_on(scene: BehindProxies, key: str, result: Any, task: str) -> None:
    """The key is free far sooner than its ttl, and whoever is next runs."""
    eventually(lambda: not scene.project.holds(key), "the key is free", within=LIMIT_S)
    if task == "early":
        with pytest.raises(WorkerLostError):
            result.get(timeout=PATIENCE)
        result = scene.project.tasks.early.delay(key)
    assert result.get(timeout=PATIENCE) == "done"
    eventually(lambda: not scene.project.holds(key))


@pytest.mark.parametrize("task", ["early", "late"])
def test_what_was_granted_to_a_killed_process_is_free(scene: BehindProxies, task: str) -> None:
    project, key = scene.project, uuid.uuid4().hex
    child = scene.child()
    scene.hold(requests=False)
    result = getattr(project.tasks, task).delay(key)
    eventually(lambda: len(project.holds(key)) == 3, "it is granted")
    assert project.notes("begin", key=key) == []
    kill_process(child)
    # The main process's releases get there, whether or not it hears of that.
    eventually(lambda: not project.holds(key), "the key is free", within=LIMIT_S)
    scene.heal()
    assert_it_goes_on(scene, key, result, task)


def test_what_is_granted_after_the_death_is_free_as_well(scene: BehindProxies) -> None:
    project, key = scene.project, uuid.uuid4().hex
    child = scene.child()
    before = [proxy.requests.reads for proxy in scene.proxies]
    scene.hold(requests=True)
    result = project.tasks.early.delay(key)
    eventually(
        lambda: all(p.requests.reads > n for p, n in zip(scene.proxies, before, strict=True)),
        "it is on its way to each node",
    )
    kill_process(child)
    scene.heal()
    assert_it_goes_on(scene, key, result, "early")


@pytest.mark.long
def test_a_process_killed_at_any_moment_leaves_no_lock(scene: BehindProxies) -> None:
    project, chance = scene.project, random.Random(22)
    for _ in range(12):
        key, child = uuid.uuid4().hex, scene.child()
        for proxy in scene.proxies:
            proxy.replies.delay = 0.02
        result = project.tasks.late.delay(key, key)
        until = time.monotonic() + chance.uniform(0.0, 0.15)
        eventually(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
        kill_process(child)
        eventually(lambda child=child: not is_alive(child))  # type: ignore[misc]
        scene.heal()
        project.open(key)
        assert_it_goes_on(scene, key, result, "late")
