"""What receivers of the signals, and monitors, are told; and that neither can change anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from celery_redlock import DuplicateTask
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.nodes import take_on
from tests.support.processes.project import Project
from tests.support.processes.workers import POOLS, Worker


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("announcing")


@pytest.fixture(scope="module", params=POOLS)
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = project.start_worker(pool=request.param, concurrency=2, args=("--task-events",))
    yield worker
    worker.kill_all()


prefork = pytest.mark.parametrize("worker", ["prefork"], indirect=True)


def told(project: Project, task_id: str) -> list[str]:
    """Return which signals were sent about a task, in order."""
    return [note.event for note in project.notes(of=task_id) if note.event.startswith("lock_")]


# --- signals --------------------------------------------------------------------------------------


def test_receivers_are_told_in_the_process_that_runs_the_task(
    project: Project, worker: Worker, key: str
) -> None:
    task = project.tasks.told
    result = task.delay(key)
    pid = result.get(timeout=PATIENCE)
    assert told(project, result.id) == ["lock_acquired", "lock_released"]
    for note in project.notes(of=result.id):
        assert note.pid == pid
        assert note.more["sender"] == task.name
        assert note.more["key"] == f"{task.name}:{key}"
        assert note.more["lost"] is False


def test_receivers_are_told_of_a_loss_once(project: Project, worker: Worker, key: str) -> None:
    task = project.tasks.told
    result = task.delay(key, key)
    project.run_of(result.id)
    token = time.time_ns() // 1000
    take_on(project.nodes, f"{task.name}:{key}", "somebody else", token=token)
    note = project.wait_for_note("lock_lost", of=result.id)
    assert note.more["lost"] is True
    project.open(key)
    assert result.get(timeout=PATIENCE) == note.pid
    assert told(project, result.id) == ["lock_acquired", "lock_lost", "lock_released"]


def test_receivers_are_told_of_a_conflict(project: Project, worker: Worker, key: str) -> None:
    if worker.pool == "solo":
        take_on(project.nodes, f"{project.tasks.told.name}:{key}", "f" * 32 + ":other@host")
    else:
        project.run_of(project.tasks.told.delay(key, key).id)
    duplicate = project.tasks.told.delay(key)
    with pytest.raises(DuplicateTask):
        duplicate.get(timeout=PATIENCE)
    assert told(project, duplicate.id) == ["lock_conflict"]
    [note] = project.notes(of=duplicate.id)
    assert note.more["outcome"] == "skip"


# --- the event ------------------------------------------------------------------------------------


@contextmanager
def events_of(project: Project, kind: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the list to which a receiver adds each event of this kind."""
    caught: list[dict[str, Any]] = []
    should_end, is_ready = threading.Event(), threading.Event()

    def receive() -> None:
        with project.app.connection_for_read() as connection:
            receiver = project.app.events.Receiver(connection, handlers={kind: caught.append})
            with receiver.consumer_context(wakeup=False) as (its_own, _channel, _consumers):
                is_ready.set()
                while not should_end.is_set():
                    with suppress(TimeoutError):
                        its_own.drain_events(timeout=0.1)

    thread = threading.Thread(target=receive)
    thread.start()
    assert is_ready.wait(PATIENCE)
    try:
        yield caught
    finally:
        should_end.set()
        thread.join()


def test_a_monitor_is_told_of_a_duplicate(project: Project, worker: Worker, key: str) -> None:
    holder = project.tasks.told.delay(key, None if worker.pool == "solo" else key)
    if worker.pool == "solo":
        holder.get(timeout=PATIENCE)
        owner = "f" * 32 + f":{holder.id}@host"
        take_on(project.nodes, f"{project.tasks.told.name}:{key}", owner)
    else:
        project.run_of(holder.id)
    duplicates: set[str] = set()
    with events_of(project, "task-deduplicated") as caught:

        def is_caught() -> bool:
            # The monitor hears nothing of what was before it.
            duplicates.add(project.tasks.told.delay(key).id)
            time.sleep(0.1)
            return any(event["uuid"] in duplicates for event in caught)

        eventually(is_caught)
    event = next(event for event in caught if event["uuid"] in duplicates)
    assert event["key"] == f"{project.tasks.told.name}:{key}"
    assert event["holder"] == holder.id
    assert event["outcome"] == "skip"
    assert event["name"] == project.tasks.told.name
    assert event["hostname"].startswith(worker.name)
