"""A worker that is shut down does not wait for those that wait for a lock: they go back."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.nodes import expire_on, take_on
from tests.support.judges.wiretap import Wiretap
from tests.support.processes.project import Project
from tests.support.processes.workers import POOLS, Worker

LONG_S = 600.0
"""How long somebody else has the lock: longer than anybody here waits for a worker to end."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("redelivered")


@pytest.fixture
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=1)
    yield worker
    worker.kill_all()


def by_a_signal(project: Project, worker: Worker) -> None:
    worker.ask_to_end()


def by_remote_control(project: Project, worker: Worker) -> None:
    project.app.control.shutdown()


SHUTDOWNS = [(pool, by_a_signal) for pool in POOLS] + [("prefork", by_remote_control)]


@pytest.mark.long
@pytest.mark.parametrize(("worker", "shut_down"), SHUTDOWNS, indirect=["worker"])
@pytest.mark.parametrize("name", ["waiting", "waiting_long"])
def test_a_run_that_waits_for_its_lock_goes_back_to_the_queue(
    project: Project,
    worker: Worker,
    key: str,
    shut_down: Callable[[Project, Worker], None],
    name: str,
) -> None:
    check_that_it_goes_back(project, worker, key, name, lambda: shut_down(project, worker))


@pytest.mark.long
def test_a_soft_shutdown_ends_a_wait_before_its_timeout(new_project: NewProject) -> None:
    """Its timeout is for what runs; after it, what is acknowledged early would be lost."""
    project = new_project("redelivered", worker_soft_shutdown_timeout=8.0)
    worker = project.start_worker(pool="prefork", concurrency=1)
    check_that_it_goes_back(
        project, worker, "soft", "waiting", lambda: worker.ask_to_end(signal.SIGQUIT)
    )


def check_that_it_goes_back(
    project: Project, worker: Worker, key: str, name: str, shut_down: Callable[[], None]
) -> None:
    task = getattr(project.tasks, name)
    lock = f"{task.name}:{key}"
    take_on(project.nodes, lock, "somebody else", ttl=LONG_S)
    with Wiretap(project.nodes.urls) as tap:
        result = task.delay(key)
        # More than once of each node.
        eventually(lambda: len(tap.commands("EVALSHA", key)) > len(project.nodes), "it waits")
    if worker.pool != "solo":  # whose one thread waits, and acknowledges nothing meanwhile
        eventually(lambda: not project.unacked(), "its message is acknowledged")
    shut_down()
    worker.wait_until_ended()
    assert worker.lines(f"task_id={result.id}.*outcome=reschedule")
    assert result.state == "RETRY"
    assert project.notes("begin", task_id=result.id) == []
    expire_on(project.nodes, lock)
    other = project.start_worker(pool="solo", concurrency=1)
    assert isinstance(result.get(timeout=PATIENCE), int)
    eventually(lambda: not project.unacked() and not project.queue_length(), "nothing is left")
    other.kill_all()
    assert len(project.notes("begin", task_id=result.id)) == 1
