"""A pool process runs out of memory in the middle of an acquisition.

As it waits for the nodes, a thread of its own uses up the memory that it may have. In a cgroup the
kernel kills it; under a limit of its address space allocations fail; under Celery's own limit it is
replaced after the task.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import WorkerLostError

from celery_redlock.testing import Servers
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.memory_limit import memory_limit
from tests.support.judges.endings import LIMIT_S
from tests.support.judges.runs import disorders, runs_in
from tests.support.processes.behind_proxies import BehindProxies, behind_proxies
from tests.support.processes.workers import is_alive
from tests.support.requirements import linux_only

if sys.platform == "linux":
    import resource

pytestmark = linux_only("limits the memory of another process")
MIB = 1 << 20
FREED_S = 40.0
"""Less than the ttl (60 s): the lock is released, and does not just expire."""
CALLS = pytest.mark.parametrize(("task", "place"), [("early", "asked"), ("late", "granted")])
PLACES = pytest.mark.parametrize("place", ["asked", "granted"])


class Scene(BehindProxies):
    """A worker with one pool process, which can be run out of memory."""

    def acquire(self, task: str, key: str, place: str) -> Any:
        """Publish a call, and return once its attempt has got that far: it stays there.

        Args:
            task: "early" or "late".
            key: Of the lock.
            place: "asked": stopped nodes have yet to read the request. "granted": the nodes have
                granted it, and their replies are held back.
        """
        if place == "granted":
            self.hold(requests=False)
        else:
            for node in self.project.nodes:
                node.pause()
        before = [proxy.requests.reads for proxy in self.proxies]
        result = getattr(self.project.tasks, task).delay(key)
        if place == "granted":
            eventually(lambda: len(self.project.holds(key)) == len(self.proxies), "it is granted")
        else:
            eventually(
                lambda: all(p.requests.reads > n for p, n in zip(self.proxies, before, strict=True))
            )
        assert self.project.notes("begin", key=key) == []
        return result

    def answer(self) -> None:
        """Let the nodes go on, and their replies pass."""
        for node in self.project.nodes:
            node.resume()
        self.heal()

    def use_up(self, child: int) -> None:
        """Have a thread of the pool process use up its memory."""
        full = self.project.folder / f"full-{child}"
        self.project.open(f"eat-{child}")
        eventually(lambda: full.stat().st_size or not is_alive(child), "its memory is used up")

    def assert_it_goes_on(self, key: str) -> None:
        """The key is free far sooner than its ttl, whoever is next runs, and nothing stays."""
        project = self.project
        eventually(lambda: not project.holds(key), "the key is free", within=FREED_S)
        project.tasks.early.delay(key).get(timeout=PATIENCE)
        eventually(project.is_settled)
        assert disorders(run for run in runs_in(project.notes()) if run.key == key) == []
        eventually(lambda: not project.holds(), "no lock is left")


NewScene = Callable[..., Scene]


@pytest.fixture(scope="module")
def nodes(new_nodes: NewNodes) -> Servers:
    return new_nodes(3)


@pytest.fixture
def new_scene(new_project: NewProject, nodes: Servers) -> Iterator[NewScene]:
    """A worker of each test's own: it does not always survive."""
    with ExitStack() as stack:

        def new(**conf: Any) -> Scene:
            # One arena: what malloc can't give to one thread, it gives to no other.
            env = {"MALLOC_ARENA_MAX": "1"}
            scene = stack.enter_context(behind_proxies(new_project, nodes, "hungry", env, **conf))
            return Scene(scene.project, scene.worker, scene.proxies)

        yield new
        nodes.reset()


@pytest.mark.long
@CALLS
def test_a_process_that_the_kernel_kills_leaves_no_lock(
    new_scene: NewScene, task: str, place: str
) -> None:
    # Who waits for a reply waits until it is killed.
    scene, key = new_scene(redlock_node_timeout=40.0), uuid.uuid4().hex
    project, child = scene.project, scene.child()
    with memory_limit(child, mib=64):
        result = scene.acquire(task, key, place)
        scene.use_up(child)
        eventually(lambda: not is_alive(child), "the kernel has killed it")
    if place == "granted":
        # The main process's releases reach the nodes, whether or not it hears of that.
        eventually(lambda: not project.holds(key), "the key is free", within=LIMIT_S)
    scene.answer()
    if task == "early":
        with pytest.raises(WorkerLostError):
            result.get(timeout=PATIENCE)
    else:
        result.get(timeout=PATIENCE)
    scene.assert_it_goes_on(key)
    assert len(project.notes("begin", task_id=result.id)) == (task == "late")


@contextmanager
def address_space(pid: int, more: int) -> Iterator[None]:
    """Let a process have so many more bytes of memory than now, until the block ends."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


@pytest.mark.long
@CALLS
@pytest.mark.parametrize("is_for_good", [False, True])
def test_a_process_without_memory_leaves_no_lock(
    new_scene: NewScene, task: str, place: str, is_for_good: bool
) -> None:
    """The acquisition raises MemoryError. Celery ends a worker whose task raises that.

    If not even that can be reported, the process ends, or Python raises SystemError in its place,
    and the task fails. A worker that Celery ends stores no result: a message that it has
    acknowledged early is lost.
    """
    scene, key = new_scene(redlock_node_timeout=3.0), uuid.uuid4().hex
    project, child = scene.project, scene.child()
    result = scene.acquire(task, key, place)
    with address_space(child, 16 * MIB):
        scene.use_up(child)
        scene.answer()
        eventually(lambda: not project.holds(key), "the key is free", within=FREED_S)
        if is_for_good:
            eventually(lambda: not is_alive(child) or result.failed(), "it has ended or failed")
    # The first worker may have ended.
    project.start_worker(concurrency=1)

    def is_lost() -> bool:
        return task == "early" and bool(scene.worker.lines("Unrecoverable error: MemoryError"))

    # Long after the key is free: its redelivery may look again and again, on a busy machine.
    eventually(
        lambda: result.ready() or is_lost(), "the message has run, failed, or is lost", within=180.0
    )
    scene.assert_it_goes_on(key)
    # Asked again: a message that runs after all has failed before that.
    has_failed = getattr(project.tasks, task).AsyncResult(result.id).failed()
    begun = len(project.notes("begin", task_id=result.id))
    assert begun <= (task == "late")
    assert begun or has_failed or is_lost()


@pytest.mark.long
@PLACES
def test_a_process_that_gets_memory_again_goes_on(new_scene: NewScene, place: str) -> None:
    scene, key = new_scene(redlock_node_timeout=40.0), uuid.uuid4().hex
    project, child = scene.project, scene.child()
    result = scene.acquire("late", key, place)
    with address_space(child, 16 * MIB):
        scene.use_up(child)
        # Its own keeper wakes up once a second, and may have no memory to say that it has none.
        time.sleep(3)
    scene.answer()
    result.get(timeout=PATIENCE)
    scene.assert_it_goes_on(key)
    assert {note.pid for note in project.notes("end", key=key)} == {child}


@pytest.mark.long
@PLACES
def test_a_process_above_celerys_limit_ends_after_its_task(new_scene: NewScene, place: str) -> None:
    conf = {"worker_max_memory_per_child": 300_000, "hungry_for": 400}
    scene, key = new_scene(redlock_node_timeout=40.0, **conf), uuid.uuid4().hex
    project, child = scene.project, scene.child()
    assert is_alive(child)
    result = scene.acquire("late", key, place)
    scene.use_up(child)
    assert is_alive(child)
    scene.answer()
    result.get(timeout=PATIENCE)
    eventually(lambda: not is_alive(child), "it is replaced")
    scene.assert_it_goes_on(key)
    first, second = project.notes("end", key=key)
    assert first.pid == child != second.pid
