"""Processes of the pool that come and go while it runs: recycled, grown, shrunk, spawned."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.endings import LIMIT_S
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker, kill_process
from tests.support.versions import SPAWNS_POOLS


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@contextmanager
def worker_with(project: Project, *args: str, **options: Any) -> Iterator[Worker]:
    worker = project.start_worker(args=args, **options)
    yield worker
    worker.kill_all()


@pytest.mark.parametrize("option", ["--max-tasks-per-child", "--max-memory-per-child"])
def test_a_process_replaced_after_each_task_leaves_nothing(
    project: Project, key: str, option: str
) -> None:
    with worker_with(project, option, "1", concurrency=2) as worker:
        pids = set()
        for count in range(3):
            # Were the one before not free by now, this one would be a duplicate.
            assert project.tasks.early.delay(key).get(timeout=PATIENCE) == "done"
            pids.add(project.wait_for_note("begin", key=key, count=count + 1).pid)
        assert len(pids) == 3
        assert worker.lines("pool keeper failed|lease lost") == []
    assert project.holds(key) == []


def let_release(project: Project, right: str) -> None:
    """Give two of three nodes' user the right to release, or take it away."""
    for node in project.nodes[:2]:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "default", right)


def test_a_process_that_ends_before_it_could_release_leaves_that_to_the_main_process(
    project: Project, key: str
) -> None:
    with worker_with(project, "--max-tasks-per-child", "1", concurrency=1) as worker:
        result = project.tasks.early.delay(key, key)
        pid = project.run_of(result.id).pid
        let_release(project, "-evalsha")
        project.open(key)
        assert result.get(timeout=PATIENCE) == "done"
        eventually(lambda: pid not in worker.children(), "its process has ended")
        let_release(project, "+evalsha")
        # It may be released between the two: two nodes are a quorum, and the third keeps its part.
        eventually(lambda: len(project.holds(key)) < 2, within=LIMIT_S)
        assert worker.lines("lock not released")


def test_a_process_in_a_reused_place_of_the_pool_is_watched(project: Project, key: str) -> None:
    with worker_with(project, "--max-tasks-per-child", "1", concurrency=2) as worker:
        for _ in range(2):
            project.tasks.early.delay(key).get(timeout=PATIENCE)
        eventually(lambda: len(worker.children()) == 2)
        killed, other = (project.tasks.early.delay(f"{key}-{which}", key) for which in range(2))
        run = project.run_of(killed.id)
        project.run_of(other.id)
        kill_process(run.pid)
        eventually(lambda: not project.holds(f"{key}-0"), within=LIMIT_S)
        assert project.votes(other.id) >= 2
        project.open(key)
        assert other.get(timeout=PATIENCE) == "done"


def test_a_process_that_the_pool_has_grown_by_is_watched(project: Project, key: str) -> None:
    env = {"AUTOSCALE_KEEPALIVE": "1"}
    with worker_with(project, "--autoscale", "4,1", concurrency=1, env=env) as worker:
        results = [project.tasks.early.delay(f"{key}-{number}", key) for number in range(4)]
        assert len({project.run_of(result.id).pid for result in results}) == 4
        kill_process(project.run_of(results[3].id).pid)
        eventually(lambda: not project.holds(f"{key}-3"), within=LIMIT_S)
        assert all(project.votes(result.id) >= 2 for result in results[:3])
        project.open(key)
        assert [result.get(timeout=PATIENCE) for result in results[:3]] == ["done"] * 3
        # Not always to one: a process that Celery ends as it begins takes the signal for one to the
        # main process, in whose place it was forked, and stays.
        worker.wait_for_line("Scaling down")
        eventually(lambda: len(worker.children()) < 4, "the pool has shrunk")
        assert project.tasks.early.delay(key).get(timeout=PATIENCE) == "done"
    assert project.holds(key) == []


def test_a_pool_that_is_spawned_keeps_its_leases_itself(
    new_project: NewProject,
) -> None:
    project = new_project("endings", worker_pool_start_method="spawn")
    with worker_with(project, concurrency=2) as worker:
        kept = project.tasks.brief.delay("kept", "gate")
        killed = project.tasks.brief.delay("killed", "gate")
        began = project.run_of(kept.id).at
        run = project.run_of(killed.id)
        while time.monotonic() < began + 5:  # its ttl is 3 s
            assert project.votes(kept.id) >= 2
            time.sleep(0.2)
        kill_process(run.pid)
        # Of one that was spawned, nobody but its ttl can free it.
        eventually(lambda: not project.holds("killed"), within=LIMIT_S)
        project.open("gate")
        assert kept.get(timeout=PATIENCE) == "done"
        noticed = worker.lines("pool keeper|pool process died")
        assert len(noticed) == (0 if SPAWNS_POOLS else 1)
    assert project.holds("kept") == []
