"""Between greenlets and the real thread that renews their leases nobody hangs, or is disturbed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("green")


@pytest.fixture(scope="module", params=["gevent", "eventlet"])
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=10)
    yield worker
    worker.kill_all()


@pytest.mark.long
def test_what_a_body_waits_for_is_not_cut_short(project: Project, worker: Worker, key: str) -> None:
    for _ in range(3):
        naps = [project.tasks.napping.delay(f"{key}-{number}", 0.3) for number in range(5)]
        assert all(nap.get(timeout=PATIENCE) >= 0.29 for nap in naps)


@pytest.mark.long
def test_leases_are_renewed_after_a_time_without_any(
    project: Project, worker: Worker, key: str
) -> None:
    for number in range(3):
        kept = project.tasks.lasting.delay(f"{key}-{number}", f"{key}-{number}")
        project.run_of(kept.id)
        until = time.monotonic() + 4.5  # and its ttl is 3
        while time.monotonic() < until:
            assert project.votes(kept.id) >= 2
        project.open(f"{key}-{number}")
        assert kept.get(timeout=PATIENCE) is False
        time.sleep(5 * project.tasks.IDLE_S)


@pytest.mark.long
def test_the_keeper_never_waits_for_a_lock_of_the_greenlets(
    project: Project, worker: Worker, key: str
) -> None:
    kept = project.tasks.lasting.delay(f"{key}-kept", key)
    project.run_of(kept.id)
    chats = [project.tasks.chatting.delay(3.0) for _ in range(2)]
    for number in range(6):
        project.tasks.overstaying.delay(f"{key}-{number}", key)
    # It says something of each, among those who chat …
    worker.wait_for_line("lease lost under a running task", count=6)
    for chat in chats:
        chat.get(timeout=PATIENCE)
    # … and goes on to renew.
    began = time.monotonic()
    while time.monotonic() < began + 4:
        assert project.votes(kept.id) >= 2
    project.open(key)
    assert kept.get(timeout=PATIENCE) is False
