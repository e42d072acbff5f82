"""A Redis broker that takes a message for lost after three seconds, or loses its connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.faults.redelivery import (
    Watch,
    each_noted,
    messages,
    restoring_often,
    wait_until_settled,
)
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

VISIBILITY_TIMEOUT_S = 3
FORGETFUL: dict[str, Any] = {
    "broker_transport_options": {
        "visibility_timeout": VISIBILITY_TIMEOUT_S,
        # Celery looks for such messages at every turn, and not at every hundredth.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # A worker that is killed while it looks would keep the others from looking for 5 minutes.
        "unacked_mutex_expire": 1,
    },
    "worker_prefetch_multiplier": 1,
}
LONG_S = 7.0


@pytest.fixture(scope="module")
def late(new_project: NewProject) -> Iterator[Project]:
    project = new_project("redelivered", task_acks_late=True, **FORGETFUL)
    for _ in range(2):
        project.start_worker(concurrency=7)
    with restoring_often(project):
        yield project


@pytest.fixture(scope="module")
def early(new_project: NewProject) -> Iterator[Project]:
    project = new_project("redelivered", **FORGETFUL)
    for _ in range(2):
        project.start_worker(concurrency=4)
    with restoring_often(project):
        yield project


def runs(project: Project, result: AsyncResult[Any]) -> list[Note]:
    return project.notes("begin", task_id=result.id)


def wait_until_parked(project: Project, result: AsyncResult[Any], *, count: int = 1) -> None:
    line = f"task_id={result.id} holder_task_id={result.id} .*outcome=parked"
    eventually(
        lambda: sum(len(worker.lines(line)) for worker in project.workers) >= count,
        f"{result.id} is parked {count} times",
    )


def wait_until_parked_copy_is_delivered(project: Project, result: AsyncResult[Any]) -> None:
    """Return when a worker has the copy."""
    wait_until_parked(project, result)
    eventually(
        lambda: any(
            message.is_delivered and message.raw["headers"]["eta"]
            for message in messages(project, result.id)
        )
    )


def wait_until_redelivered(project: Project, result: AsyncResult[Any], times: int) -> None:
    received = rf"{result.id}\] received"
    eventually(
        lambda: sum(len(worker.lines(received)) for worker in project.workers) > times,
        f"{result.id} is redelivered {times} times",
    )


# --- longer than the timeout ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_ones(late: Project, early: Project) -> dict[str, tuple[Project, Any, Watch]]:
    """Tasks that run, or wait for their eta, for more than twice the visibility timeout.

    Each has a key of its own: both projects lock on the same nodes.
    """
    began = time.monotonic()
    started = {
        "a long task": (late, late.tasks.plain.delay("long", "long")),
        "an eta, acknowledged late": (
            late, late.tasks.plain.apply_async(("late",), countdown=LONG_S)
        ),
        "an eta, acknowledged early": (
            early, early.tasks.plain.apply_async(("early",), countdown=LONG_S)
        ),
        "an eta and a long task": (
            early, early.tasks.plain.apply_async(("both", "both"), countdown=LONG_S)
        ),
    }  # fmt: skip
    seen = {}
    with ExitStack() as watching:
        for name, (project, result) in started.items():
            watch = watching.enter_context(Watch(project, result.id))
            seen[name] = project, result, watch
        eventually(lambda: time.monotonic() > began + LONG_S)
        wait_until_parked(late, started["a long task"][1], count=2)
        late.open("long")
        early.run_of(started["an eta and a long task"][1].id)
        eventually(lambda: time.monotonic() > began + LONG_S + 2)
        early.open("both")
        for project in (late, early):
            wait_until_settled(project)
    return seen


@pytest.mark.parametrize(
    "name",
    [
        "a long task", "an eta, acknowledged late", "an eta, acknowledged early",
        "an eta and a long task",
    ],
)  # fmt: skip
def test_it_runs_once_and_its_result_stands(
    long_ones: dict[str, tuple[Project, Any, Watch]], name: str
) -> None:
    project, result, watch = long_ones[name]
    wait_until_redelivered(project, result, 1)
    [run] = runs(project, result)
    assert result.get(timeout=PATIENCE) == run.token
    assert watch.states == ["SUCCESS"]
    # Another copy may be on its way: it is discarded when its time comes.
    eventually(lambda: messages(project) == [])


def test_a_long_task_has_two_messages_at_most(
    long_ones: dict[str, tuple[Project, Any, Watch]],
) -> None:
    _, _, watch = long_ones["a long task"]
    assert watch.most <= 2


# --- a worker is killed ---------------------------------------------------------------------------


def where(project: Project, result: AsyncResult[Any]) -> Worker:
    """Return the worker that runs it."""
    pid = project.run_of(str(result.id)).pid
    [worker] = [worker for worker in project.workers if pid in worker.children()]
    return worker


def taken_over(project: Project, result: AsyncResult[Any]) -> tuple[Note, Note]:
    project.wait_for_note("begin", task_id=result.id, count=2)
    first, second = runs(project, result)
    assert first.token is not None
    assert second.token is not None
    assert second.token > first.token
    return first, second


def test_tasks_of_a_killed_worker_run_again_exactly_once(late: Project) -> None:
    copied = late.tasks.plain.delay("copied", "killed")
    killed = where(late, copied)
    wait_until_parked_copy_is_delivered(late, copied)
    fresh = [late.tasks.plain.delay(f"fresh {n}", "killed") for n in range(4)]
    fresh = [result for result in fresh if where(late, result) is killed]
    with each_noted(late, copied.id):
        killed.kill()
    for result in (copied, *fresh):
        taken_over(late, result)
    late.open("killed")
    wait_until_settled(late)
    for result in (copied, *fresh):
        _, second = runs(late, result)
        assert result.get(timeout=PATIENCE) == second.token
    late.start_worker(concurrency=7)


def test_after_all_workers_are_killed_tasks_run_again_once(late: Project) -> None:
    copied = late.tasks.plain.delay("all copied", "all killed")
    wait_until_parked_copy_is_delivered(late, copied)
    fresh = late.tasks.plain.delay("all fresh", "all killed")
    late.run_of(fresh.id)
    with each_noted(late, copied.id, fresh.id):
        for worker in late.workers:
            if worker.is_running:
                worker.kill_all()
    late.open("all killed")
    late.start_worker(concurrency=7)
    for result in (copied, fresh):
        _, second = taken_over(late, result)
        assert result.get(timeout=PATIENCE) == second.token
    wait_until_settled(late)
    for result in (copied, fresh):
        assert len(runs(late, result)) == 2


# --- the pool is full -----------------------------------------------------------------------------


def test_copies_that_wait_for_a_free_process_end_with_the_first(new_project: NewProject) -> None:
    project = new_project("redelivered", task_acks_late=True, **FORGETFUL)
    for _ in range(2):
        project.start_worker(concurrency=1, args=("--prefetch-multiplier", "100"))
    running = project.tasks.plain.delay("running", "gate")
    project.run_of(running.id)
    blocking: list[AsyncResult[Any]] = []

    def is_blocked() -> bool:
        # Either worker may take a message, also the one that is busy.
        blocking.append(project.tasks.plain.delay(f"blocking {len(blocking)}", "gate"))
        time.sleep(0.2)
        return any(runs(project, result) for result in blocking)

    eventually(is_blocked, "the other worker is busy")
    # Each time the timeout passes, one worker more has a copy that it can't run yet.
    with restoring_often(project):
        wait_until_redelivered(project, running, 2)
    project.open("gate")
    wait_until_settled(project)
    assert {len(runs(project, result)) for result in (running, *blocking)} == {1}


# --- the connection is lost -----------------------------------------------------------------------


@pytest.mark.parametrize("acks_late", [True, False])
def test_a_broken_connection_neither_repeats_nor_loses_what_runs(
    new_project: NewProject, acks_late: bool
) -> None:
    project = new_project("redelivered", task_acks_late=acks_late)
    port = int(str(project.conf["broker_url"]).rpartition(":")[2].partition("/")[0])
    with Proxy(port) as proxy:
        worker = project.start_worker(env={"CELERY_BROKER_URL": f"{proxy.url}/0"}, concurrency=3)
        result = project.tasks.plain.delay("key", "gate")
        project.run_of(result.id)
        if not acks_late:
            # Its body may have begun before the broker has the acknowledgement.
            eventually(lambda: not project.unacked(), "it is acknowledged")
        for count in range(1, 3):
            proxy.reset()
            worker.wait_for_line("Connection to broker lost", count=count)
            # It listens again.
            collecting = project.tasks.collect.delay(count)
            worker.wait_for_line(rf"{collecting.id}\] received")
        with Watch(project, result.id) as watch:
            time.sleep(2)
            project.open("gate")
            assert isinstance(result.get(timeout=PATIENCE), int)
            wait_until_settled(project)
        assert len(runs(project, result)) == 1
        assert watch.states == ["SUCCESS"]
        project.close()
