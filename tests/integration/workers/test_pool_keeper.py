"""The main process keeps the leases of its pool, and short tasks cost it nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.redlock.labels import label_of
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.endings import LIMIT_S
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker, kill_process
from tests.support.requirements import linux_only
from tests.support.root import ROOT

pytestmark = linux_only("has pidfds")
TASKS = 200
LONG_ID = "x" * 1500


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@pytest.fixture(scope="module")
def worker(project: Project) -> Iterator[Worker]:
    worker = project.start_worker(concurrency=2)
    yield worker
    worker.kill_all()


def wakeups_beside_celery(worker: Worker) -> int:
    """Return how often a thread of the main process has waited, but for Celery's own thread."""
    count = 0
    for folder in Path(f"/proc/{worker.pid}/task").iterdir():
        if folder.name != str(worker.pid):
            count += int(
                (folder / "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0]
            )
    return count


def test_short_tasks_do_not_wake_the_main_processs_keeper(
    project: Project, worker: Worker, key: str
) -> None:
    project.tasks.early.delay(f"{key}-warm").get(timeout=PATIENCE)
    began, before = time.monotonic(), wakeups_beside_celery(worker)
    results = [project.tasks.early.delay(f"{key}-{number}") for number in range(TASKS)]
    assert [result.get(timeout=PATIENCE) for result in results] == ["done"] * TASKS
    wakeups = wakeups_beside_celery(worker) - before
    # A few in a second, however many tasks; it was two for each task once.
    assert wakeups < TASKS / 2 + 3 * (time.monotonic() - began)


def test_a_lease_taken_after_a_long_look_ahead_is_renewed(
    project: Project, worker: Worker, key: str
) -> None:
    """The keeper has seen leases of 60 s only, and one of 3 s is due long before its next look."""
    long = project.tasks.early.delay(f"{key}-long", key)
    project.run_of(long.id)
    brief = project.tasks.brief.delay(f"{key}-brief", key)
    began = project.run_of(brief.id).at
    while time.monotonic() < began + 5:
        assert project.votes(brief.id) >= 2
        time.sleep(0.2)
    project.open(key)
    assert brief.get(timeout=PATIENCE) == long.get(timeout=PATIENCE) == "done"


def test_more_leases_than_rows_are_all_released(project: Project, worker: Worker, key: str) -> None:
    result = project.tasks.nesting.delay(key, key, 10)
    project.wait_for_note("begin", key=f"{key}-1")
    assert len({hold.key for hold in project.holds(key)}) == 11
    project.open(key)
    result.get(timeout=PATIENCE)
    eventually(lambda: not project.holds(key))
    assert worker.lines("pool keeper failed|lease lost") == []


def test_a_lease_with_the_longest_label_is_kept_as_any_other(
    project: Project, worker: Worker, key: str
) -> None:
    result = project.tasks.brief.apply_async((key, key), task_id=f"{key}-{LONG_ID}")
    run = project.run_of(result.id)
    while time.monotonic() < run.at + 5:  # its ttl is 3 s
        assert project.votes(label_of(result.id)) >= 2
        time.sleep(0.2)
    kill_process(run.pid)
    eventually(lambda: not project.holds(key), within=LIMIT_S)
    project.open(key)
    result.forget()


def test_what_a_process_writes_is_whole_though_it_is_killed() -> None:
    command = [sys.executable, "-m", "tests.support.processes.table_writing", "40"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
