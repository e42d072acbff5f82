"""Connections of a worker to its nodes: a pool process connects for its first lock, no sooner."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Iterator[Project]:
    project = new_project("locked", redlock_idle_timeout=1)
    project.start_worker(concurrency=6)
    yield project
    project.ask_workers_to_end()


def connections(project: Project) -> dict[int, int]:
    """Return by pool process how many connections it has to a node; those without are left out."""
    ports = {urlsplit(url).port for url in project.nodes.urls}
    found: dict[int, int] = {}
    for pid in project.workers[0].children():
        # The remote address is empty for a socket that listens.
        remote = [one.raddr[1] for one in psutil.Process(pid).net_connections() if len(one.raddr)]
        counts = [remote.count(port) for port in remote if port in ports]
        if counts:
            found[pid] = max(counts)
    return found


def test_pool_processes_connect_for_a_lock_and_not_when_idle(project: Project, key: str) -> None:
    assert connections(project) == {}
    running = project.tasks.skipping.delay(key, key)
    pid = project.run_of(running.id).pid
    assert connections(project).items() <= {pid: 1}.items(), "the others need none"
    project.open(key)
    assert isinstance(running.get(timeout=PATIENCE), int)
    eventually(lambda: connections(project) == {}, "idle connections are closed")
    again = project.tasks.skipping.delay(key)
    assert isinstance(again.get(timeout=PATIENCE), int)
    assert set(connections(project)) <= {pid, project.run_of(again.id).pid}
