"""A lease is lost under a running task: who is told, who is interrupted, and who never is."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock import LeaseLost
from tests.support.eventually import eventually
from tests.support.figures import Figures
from tests.support.nodes import holders_on, take_on
from tests.support.project import Project
from tests.support.wiretap import Wiretap
from tests.support.workers import Worker

from .conftest import NewProject

GET_WITHIN = 60.0
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
THIEF = "somebody else"
AT_ONCE_S = 10.0
"""A body that is interrupted at once would have run for three times as long."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("losing")


@pytest.fixture(scope="module", params=POOLS)
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=4)
    yield worker
    worker.kill_all()


prefork = pytest.mark.parametrize("worker", ["prefork"], indirect=True)


def lock_of(task: Any, key: str) -> str:
    return f"{task.name}:{key}"


def rob(project: Project, task: Any, key: str) -> float:
    """Let somebody else have the lock, under a higher token; return when."""
    take_on(project.nodes, lock_of(task, key), THIEF, token=time.time_ns() // 1000)
    return time.monotonic()


def assert_it_is_told_once(worker: Worker, task_id: str) -> None:
    lines = worker.lines(f"ERROR.*lease lost under a running task.*task_id={task_id}")
    assert len(lines) == 1


# --- abort ----------------------------------------------------------------------------------------

INTERRUPTED = {
    "prefork": {"sleep", "compute", "wait for a reply"},
    "solo": {"sleep", "compute", "wait for a reply"},
    "threads": {"compute"},
    "gevent": {"sleep", "wait for a reply"},
    "eventlet": {"sleep", "wait for a reply"},
}
"""What a body does when LeaseLost is raised in it at once, in each pool."""


@pytest.mark.parametrize("how", ["sleep", "compute", "wait for a reply"])
def test_a_body_that_has_lost_its_lease_is_aborted(
    project: Project, worker: Worker, key: str, how: str, figures: Figures
) -> None:
    task = project.tasks.aborted
    is_interrupted = how in INTERRUPTED[worker.pool]
    # One that can't be interrupted finds out as it comes back to Python, or to the others.
    result = task.delay(key, how, 30.0 if is_interrupted else 1.5)
    project.run_of(result.id)
    robbed_at = rob(project, task, key)
    if is_interrupted:
        note = project.wait_for_note("interrupted", key=key)
        assert note.at - robbed_at < AT_ONCE_S
        figures.add(f"robbed to LeaseLost: {how}, {worker.pool}", note.at - robbed_at)
    if is_interrupted or worker.pool == "threads":
        with pytest.raises(LeaseLost) as caught:
            result.get(timeout=GET_WITHIN)
        assert caught.value.key == lock_of(task, key)
        assert result.state == "FAILURE"
    else:
        # It was at its end before it came to the others.
        assert result.get(timeout=GET_WITHIN) == "done"
    # The lock is left to whoever has it now, and the worker goes on.
    assert holders_on(project.nodes, lock_of(task, key)) == [THIEF] * 3
    assert_it_is_told_once(worker, result.id)
    assert project.tasks.bystander.delay().get(timeout=GET_WITHIN) is True


def test_whoever_runs_next_is_never_hit(project: Project, worker: Worker, key: str) -> None:
    victims, bystanders, others = [], [], []
    for number in range(30):
        victims.append(project.tasks.robbed.delay(f"{key}-{number}"))
        bystanders += [project.tasks.bystander.delay() for _ in range(5)]
        others += [project.tasks.other.delay(f"{key}-{number}-{i}") for i in range(2)]
    assert [one.get(timeout=GET_WITHIN) for one in bystanders] == [True] * len(bystanders)
    assert [one.get(timeout=GET_WITHIN) for one in others] == ["done"] * len(others)
    ends = [one.get(timeout=GET_WITHIN, propagate=False) for one in victims]
    assert all(end == "done" or isinstance(end, LeaseLost) for end in ends), ends
    assert worker.is_running


# --- continue -------------------------------------------------------------------------------------


def test_a_body_that_wants_to_go_on_is_told_and_left_alone(
    project: Project, worker: Worker, key: str
) -> None:
    task = project.tasks.continued
    result = task.delay(key, key)
    project.run_of(result.id)
    rob(project, task, key)
    worker.wait_for_line(rf"lease lost under a running task.*task_id={result.id}.*continue")
    project.open(key)
    assert result.get(timeout=GET_WITHIN) == [True, 0.0]
    assert holders_on(project.nodes, lock_of(task, key)) == [THIEF] * 3
    assert_it_is_told_once(worker, result.id)


# --- what a process of the prefork pool knows -----------------------------------------------------


@prefork
def test_a_pool_process_knows_its_lease_without_asking_anybody(
    project: Project, worker: Worker, key: str
) -> None:
    task = project.tasks.looking
    with Wiretap(project.nodes.urls) as tap:
        result = task.delay(key, key)
        project.run_of(result.id)
        before = len(tap.commands("EVALSHA", key))
        project.wait_for_note("looked", key=key)
        # Renewed once a second; looked at 30,000 times.
        assert len(tap.commands("EVALSHA", key)) - before < 100
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 1)
    project.open(key)
    most, left, is_lost = result.get(timeout=GET_WITHIN)
    assert 1 < most <= 3
    assert 0 < left <= 3
    assert is_lost is False


@prefork
def test_a_pool_process_knows_that_nobody_renews_its_lease(
    project: Project, worker: Worker, key: str
) -> None:
    result = project.tasks.continued.delay(key, key)
    project.run_of(result.id)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        eventually(lambda: not project.holds(key), "it has expired")
        project.open(key)
        project.wait_for_note("end", key=key)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    assert result.get(timeout=GET_WITHIN) == [True, 0.0]


# --- a call into C that does not return -----------------------------------------------------------


@prefork
@pytest.mark.parametrize("how", ["regex", "power"])
def test_a_task_that_holds_the_gil_for_three_ttls_keeps_its_lock(
    project: Project, worker: Worker, key: str, how: str
) -> None:
    result = project.tasks.hogging.delay(key, how)
    project.run_of(result.id)
    looks = 0
    while not project.notes("back", key=key):
        assert project.votes(result.id) >= 2 or project.notes("back", key=key)
        looks += 1
    took, is_lost, remaining = result.get(timeout=GET_WITHIN)
    assert looks > 10
    assert took >= 3
    assert is_lost is False
    assert remaining > 0


@pytest.mark.parametrize("worker", ["threads", "solo", "gevent", "eventlet"], indirect=True)
def test_elsewhere_a_task_that_holds_the_gil_for_three_ttls_learns_that_it_lost_its_lock(
    project: Project, worker: Worker
) -> None:
    # The thread that would renew the lease waits for the interpreter, too.
    key = uuid.uuid4().hex
    result = project.tasks.hogging_in_vain.delay(key)
    end = result.get(timeout=GET_WITHIN, propagate=False)
    assert isinstance(end, LeaseLost) or end == [True, 0.0]
    eventually(lambda: not project.holds(key))
    assert_it_is_told_once(worker, result.id)
