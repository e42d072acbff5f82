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
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.figures import Figures
from tests.support.judges.nodes import holders_on, set_ttl_on, take_on
from tests.support.judges.wiretap import Wiretap
from tests.support.processes.project import Project
from tests.support.processes.workers import POOLS, Worker

THIEF = "somebody else"
LONG_S = 600.0
"""Longer than anybody here waits."""


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
    line = f"ERROR.*lease lost under a running task.*task_id={task_id}"
    worker.wait_for_line(line)  # the keeper may tell it after the body has ended
    assert len(worker.lines(line)) == 1


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
    comes_back = worker.pool == "threads" and not is_interrupted
    result = task.delay(key, how, LONG_S if is_interrupted else 1.5, goes_on=comes_back)
    project.run_of(result.id)
    robbed_at = rob(project, task, key)
    if is_interrupted:
        note = project.wait_for_note("interrupted", key=key)
        figures.add(f"robbed to LeaseLost: {how}, {worker.pool}", note.at - robbed_at)
    if is_interrupted or worker.pool == "threads":
        with pytest.raises(LeaseLost) as caught:
            result.get(timeout=PATIENCE)
        assert caught.value.key == lock_of(task, key)
        assert result.state == "FAILURE"
    else:
        # It was at its end before it came to the others.
        assert result.get(timeout=PATIENCE) == "done"
    # The lock is left to whoever has it now, and the worker goes on.
    assert holders_on(project.nodes, lock_of(task, key)) == [THIEF] * 3
    assert_it_is_told_once(worker, result.id)
    assert project.tasks.bystander.delay().get(timeout=PATIENCE) is True


def test_whoever_runs_next_is_never_hit(project: Project, worker: Worker, key: str) -> None:
    victims, bystanders, others = [], [], []
    for number in range(30):
        victims.append(project.tasks.robbed.delay(f"{key}-{number}"))
        bystanders += [project.tasks.bystander.delay() for _ in range(5)]
        others += [project.tasks.other.delay(f"{key}-{number}-{i}") for i in range(2)]
    assert [one.get(timeout=PATIENCE) for one in bystanders] == [True] * len(bystanders)
    assert [one.get(timeout=PATIENCE) for one in others] == ["done"] * len(others)
    ends = [one.get(timeout=PATIENCE, propagate=False) for one in victims]
    assert [end for end in ends if end != "done" and not isinstance(end, LeaseLost)] == []
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
    assert result.get(timeout=PATIENCE) == [True, 0.0]
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
        # Renewed every few seconds; looked at 30,000 times.
        assert len(tap.commands("EVALSHA", key)) - before < 1000
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > 1)
    project.open(key)
    most, left, is_lost = result.get(timeout=PATIENCE)
    assert 1 < most <= 8
    assert 0 < left <= 8
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
    assert result.get(timeout=PATIENCE) == [True, 0.0]


@prefork
def test_a_body_is_aborted_while_the_main_process_stands_still(
    project: Project, worker: Worker, key: str
) -> None:
    result = project.tasks.aborted.delay(key, "sleep")
    project.run_of(result.id)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        project.wait_for_note("interrupted", key=key)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    with pytest.raises(LeaseLost):
        result.get(timeout=PATIENCE)
    assert_it_is_told_once(worker, result.id)
    assert project.tasks.bystander.delay().get(timeout=PATIENCE) is True


@prefork
def test_a_lock_that_outlasts_its_lost_lease_is_no_copys(
    project: Project, worker: Worker, key: str
) -> None:
    # Which would have the result, and this task none.
    lock = lock_of(project.tasks.aborted, key)
    result = project.tasks.aborted.delay(key, "sleep")
    project.run_of(result.id)
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        set_ttl_on(project.nodes, lock, LONG_S)
        project.wait_for_note("interrupted", key=key)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    with pytest.raises(LeaseLost):
        result.get(timeout=PATIENCE)
    assert holders_on(project.nodes, lock) == [None] * 3


# --- a call into C that does not return -----------------------------------------------------------


@pytest.mark.parametrize("worker", ["threads", "solo", "gevent", "eventlet"], indirect=True)
def test_a_task_that_holds_the_gil_learns_of_its_lost_lease(
    project: Project, worker: Worker
) -> None:
    """In pools whose renewals run in the task's process, after three TTLs."""
    # The thread that would renew the lease waits for the interpreter, too.
    key = uuid.uuid4().hex
    result = project.tasks.hogging_in_vain.delay(key)
    end = result.get(timeout=PATIENCE, propagate=False)
    assert isinstance(end, LeaseLost) or end == [True, 0.0]
    eventually(lambda: not project.holds(key))
    assert_it_is_told_once(worker, result.id)
