"""A process of the prefork pool is killed before anybody was told of the lease that it was granted.

The nodes are behind proxies, which hold back what the process asks for, or the nodes' replies.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from celery.exceptions import WorkerLostError

from celery_redlock.testing import Servers
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.judges.endings import LIMIT_S
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker, is_alive, kill_process


@dataclass(frozen=True, slots=True)
class Scene:
    """A worker with one pool process, whose nodes are behind proxies.

    Attributes:
        project: Its project; it sees the nodes themselves.
        worker: The worker.
        proxies: What the worker's nodes are behind.
    """

    project: Project
    worker: Worker
    proxies: list[Proxy]

    def child(self) -> int:
        """Return the one process of the pool, once it has its connections to the nodes."""
        result = self.project.tasks.early.delay(uuid.uuid4().hex)
        assert result.get(timeout=PATIENCE) == "done"
        return self.project.run_of(result.id).pid

    def hold(self, *, requests: bool) -> None:
        """Let nothing pass to the nodes, or nothing back."""
        for proxy in self.proxies:
            direction = proxy.requests if requests else proxy.replies
            direction.holds = True

    def heal(self) -> None:
        """Let everything pass again, what was held back too."""
        for proxy in self.proxies:
            proxy.heal()


@pytest.fixture(scope="module")
def nodes(new_nodes: NewNodes) -> Servers:
    return new_nodes(3)


@pytest.fixture
def scene(new_project: NewProject, nodes: Servers) -> Iterator[Scene]:
    """A worker of this test's own: a second after a death the main process releases once more.

    If the nodes were held then, it would wait for them, and not see the next death.
    """
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        urls = [proxy.url for proxy in proxies]
        # Who waits for a reply waits until it is killed.
        project = new_project("endings", nodes=nodes, redlock_nodes=urls, redlock_node_timeout=40.0)
        worker = project.start_worker(concurrency=1)
        yield Scene(project, worker, proxies)
        worker.kill_all()


def assert_it_goes_on(scene: Scene, key: str, result: Any, task: str) -> None:
    """The key is free far sooner than its ttl (30 s), and whoever is next runs."""
    eventually(lambda: not scene.project.holds(key), "the key is free", within=LIMIT_S)
    if task == "early":
        with pytest.raises(WorkerLostError):
            result.get(timeout=PATIENCE)
        result = scene.project.tasks.early.delay(key)
    assert result.get(timeout=PATIENCE) == "done"
    eventually(lambda: not scene.project.holds(key))


@pytest.mark.parametrize("task", ["early", "late"])
def test_what_was_granted_to_a_killed_process_is_free(scene: Scene, task: str) -> None:
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


def test_what_is_granted_after_the_death_is_free_as_well(scene: Scene) -> None:
    project, key = scene.project, uuid.uuid4().hex
    child = scene.child()
    scene.hold(requests=True)
    result = project.tasks.early.delay(key)
    # As good as sent: it has been accepted, and asks for the lock first of all.
    scene.worker.wait_for_line(f"{result.id}.* received")
    time.sleep(0.5)
    kill_process(child)
    scene.heal()
    assert_it_goes_on(scene, key, result, "early")


def test_a_process_killed_at_any_moment_leaves_no_lock(scene: Scene) -> None:
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
