"""How a process of the prefork pool ends, and when its lock is free: at once, once it is dead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from celery.exceptions import TaskRevokedError, WorkerLostError

from celery_redlock import DuplicateTask
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.testing import Server
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.memory_limit import memory_limit
from tests.support.judges.endings import (
    LIMIT_S,
    End,
    Free,
    Row,
    Scene,
    kill,
    let_it_end,
    revoke,
    revoke_in_c,
    wait,
)
from tests.support.judges.figures import Figures
from tests.support.judges.wiretap import Wiretap
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker, is_alive, kill_process
from tests.support.versions import EXIT_IS_A_LOST_WORKER

PREFORK = ("prefork",)
LOST = End("FAILURE", "raises WorkerLostError")
RUN_AGAIN = End("SUCCESS", "returns 'done'", runs=2)
LIMIT = End("FAILURE", "raises TimeLimitExceeded")
REVOKED = End("REVOKED", "raises TaskRevokedError")
NOTHING = End("PENDING", "hangs")
EXITED, EXITED_LATE = (LOST, RUN_AGAIN) if EXIT_IS_A_LOST_WORKER else (NOTHING, NOTHING)

# fmt: off
ROWS = [
    Row("SystemExit", PREFORK, let_it_end, Free.AT_DEATH, (EXITED,), task="early", how="exit"),
    Row("SystemExit, acked late", PREFORK, let_it_end, Free.AT_DEATH, (EXITED_LATE,), how="exit"),
    Row("kill -9", PREFORK, kill, Free.AT_DEATH, (LOST,), task="early"),
    Row("kill -9, acked late", PREFORK, kill, Free.AT_DEATH, (RUN_AGAIN,)),
    # The lock has to be seen before the limit strikes.
    Row("time limit", PREFORK, wait, Free.AT_DEATH, (LIMIT,), options={"time_limit": 8}),
    Row("time limit in C code", PREFORK, let_it_end, Free.AT_DEATH,
        (LIMIT,), how="c for ever", options={"time_limit": 8}),
    Row("revoke KILL", PREFORK, revoke("KILL"), Free.AT_DEATH, (REVOKED,)),
    Row("revoke TERM", PREFORK, revoke("TERM"), Free.AT_DEATH, (REVOKED,)),
    Row("revoke TERM in C code", PREFORK, revoke_in_c, Free.AT_DEATH, (REVOKED,), how="c"),
]
# fmt: on


@pytest.fixture(scope="module")
def broker(_has_server: None) -> Iterator[Server]:
    with Server() as broker:
        yield broker


@pytest.fixture(scope="module")
def project(broker: Server, new_project: NewProject) -> Project:
    return new_project("endings", broker=f"{broker.url}/0")


@pytest.fixture(scope="module")
def worker(project: Project) -> Worker:
    return project.start_worker(concurrency=4)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.ending)
def test_the_lock_is_free_when_it_must_be(
    project: Project, worker: Worker, row: Row, figures: Figures
) -> None:
    assert Scene(project, worker, row, figures).play() in row.ends


def test_another_apps_lease_is_renewed_where_it_is(
    project: Project, worker: Worker, key: str
) -> None:
    result = project.tasks.calling_another_app.delay(key, key)
    project.wait_for_note("begin", key=key)
    inner = f"{project.tasks.of_another_app.name}:{key}"
    until = time.monotonic() + 4.5  # and its ttl is 3
    while time.monotonic() < until:
        held = {hold.key for hold in project.holds(inner)}
        assert held == {f"other:{{{inner}}}"}
        time.sleep(0.05)
    project.open(key)
    assert result.get(timeout=PATIENCE) is False


# --- kill -9, in more than one way ----------------------------------------------------------------


def test_all_that_a_killed_process_held_is_free(project: Project, worker: Worker, key: str) -> None:
    result = project.tasks.nesting.delay(key, key, 3)
    run = project.wait_for_note("begin", key=f"{key}-1")
    assert len({hold.key for hold in project.holds(key)}) == 4
    kill_process(run.pid)
    eventually(lambda: not project.holds(key), within=LIMIT_S)
    with pytest.raises(WorkerLostError):
        result.get(timeout=PATIENCE)


def test_a_killed_process_leaves_the_locks_of_the_others(
    project: Project, worker: Worker, key: str
) -> None:
    killed, other = (project.tasks.early.delay(f"{key}-{which}", key) for which in range(2))
    run = project.run_of(killed.id)
    assert run.pid != project.run_of(other.id).pid
    kill_process(run.pid)
    eventually(lambda: not project.holds(f"{key}-0"), within=LIMIT_S)
    assert project.votes(other.id) >= 2
    project.open(key)
    assert other.get(timeout=PATIENCE) == "done"
    killed.forget()


def test_a_killed_process_lets_go_while_the_broker_is_away(
    project: Project, worker: Worker, broker: Server, key: str, figures: Figures
) -> None:
    result = project.tasks.early.delay(key, key)
    run = project.run_of(result.id)
    broker.pause()
    try:
        began = time.monotonic()
        kill_process(run.pid)
        eventually(lambda: not project.holds(key), within=LIMIT_S)
        figures.add("kill to free: kill -9 in a broker outage", time.monotonic() - began)
    finally:
        broker.resume()
    result.forget()


def test_the_lock_of_a_process_out_of_memory_is_released(
    project: Project, worker: Worker, key: str
) -> None:
    """The kernel kills the process."""
    result = project.tasks.early.delay(key, key, "eat")
    run = project.run_of(result.id)
    with memory_limit(run.pid, mib=256):
        project.open(key)
        eventually(lambda: not is_alive(run.pid), "the kernel has killed it")
        eventually(lambda: not project.holds(key), within=LIMIT_S)
    result.forget()


def test_the_lock_of_a_killed_process_stays_for_its_lock_delay(
    project: Project, worker: Worker, key: str
) -> None:
    killed = project.tasks.delayed.delay(key, key)
    run = project.run_of(killed.id)
    assert project.held_for(key) > 40
    kill_process(run.pid)
    with pytest.raises(WorkerLostError):
        killed.get(timeout=PATIENCE)
    eventually(lambda: project.held_for(key) <= 40)
    assert project.votes(killed.id) >= 2
    with pytest.raises(DuplicateTask):
        project.tasks.delayed.delay(key).get(timeout=PATIENCE)
    # Whoever releases it frees it at once.
    assert redlock_of(project.app).drop(project.tasks.delayed.name + f":{key}")
    project.open(key)
    assert project.tasks.delayed.delay(key, key).get(timeout=PATIENCE) == "done"


def test_what_is_revoked_before_it_starts_never_takes_its_lock(
    project: Project, worker: Worker, key: str
) -> None:
    blocking = [project.tasks.early.delay(f"{key}-{which}", key) for which in range(4)]
    for one in blocking:
        project.run_of(one.id)
    revoked = project.tasks.early.delay(f"{key}-revoked")
    with Wiretap(project.nodes.urls) as tap:
        revoked.revoke()
        worker.wait_for_line(f"Tasks flagged as revoked: {revoked.id}")
        project.open(key)
        with pytest.raises(TaskRevokedError):
            revoked.get(timeout=PATIENCE)
        # The result is there as soon as it is revoked; the message is discarded in its turn.
        eventually(project.is_settled)
        assert tap.commands("redlock", f"{key}-revoked") == []


def test_a_killed_process_lets_go_during_a_warm_shutdown(
    project: Project, worker: Worker, key: str, figures: Figures
) -> None:
    result = project.tasks.early.delay(key, key)
    run = project.run_of(result.id)
    worker.ask_to_end()
    worker.wait_for_line("Warm shutdown")
    began = time.monotonic()
    kill_process(run.pid)
    eventually(lambda: not project.holds(key), within=LIMIT_S)
    figures.add("kill to free: kill -9 in a warm shutdown", time.monotonic() - began)
    worker.wait_until_ended()
