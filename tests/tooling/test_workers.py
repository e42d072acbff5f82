"""The tools that start, watch and kill real workers do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from celery import Celery

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project
from tests.support.processes.start import kill_group
from tests.support.processes.workers import Worker, is_alive
from tests.support.requirements import linux_only
from tests.support.root import ROOT

app = Celery("of-a-test-file", broker="memory://", set_as_current=False)


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("locked")


def test_queued_and_unacknowledged_messages_are_counted(
    new_project: NewProject,
) -> None:
    project, key = new_project("locked"), "key"
    for _ in range(3):
        project.tasks.skipping.delay(key, key)
    assert [project.queue_length(), project.unacked()] == [3, 0]
    worker = project.start_worker(pool="prefork", concurrency=1)
    # One runs, and was acknowledged as it began; two wait in the worker.
    eventually(lambda: [project.queue_length(), project.unacked()] == [0, 2])
    project.open(key)
    eventually(lambda: [project.queue_length(), project.unacked()] == [0, 0])
    worker.kill_all()


def test_a_test_file_can_be_a_workers_module(tmp_path: Path) -> None:
    # Those of the benchmarks are.
    with Worker(__name__, tmp_path, pool="solo") as worker:
        assert worker.lines(r"app: +of-a-test-file")
        worker.kill_all()


def test_waiting_for_a_worker_that_ended_fails_with_its_log(project: Project) -> None:
    worker = project.new_worker(args=("--no-such-option",))
    worker.start()
    with pytest.raises(AssertionError, match=r"not running[\s\S]*No such option"):
        worker.wait_until_ready()


def test_a_killed_worker_leaves_nobody_behind(project: Project) -> None:
    worker = project.start_worker(concurrency=2)
    children = worker.children()
    assert len(children) == 2
    worker.kill()
    worker.kill_all()
    eventually(lambda: not any(map(is_alive, children)))


def test_whoever_has_the_number_of_a_dead_worker_is_not_killed() -> None:
    """There are 32,768 numbers: a file of tests that takes minutes meets one again."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    ) as other:
        assert os.getpgid(other.pid) == other.pid
        dead = Mock(pid=other.pid, **{"poll.return_value": -9, "wait.return_value": -9})
        kill_group(dead)
        assert other.stdin
        other.stdin.write(b"\n")
        other.stdin.close()
        assert other.wait() == 0


@linux_only("kills processes with their parent")
def test_a_worker_does_not_outlive_a_killed_test(project: Project, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from tests.support.processes.workers import Worker
with Worker({project.module!r}, Path({str(project.folder)!r}), name="orphan") as worker:
    print(worker.pid, *worker.children(), flush=True)
    input()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 5
        parent.kill()
    eventually(lambda: not any(map(is_alive, pids)))


@linux_only("kills processes with the thread that started them")
def test_a_worker_outlives_the_thread_that_started_it(project: Project, key: str) -> None:
    worker = project.new_worker(concurrency=1)

    def start() -> None:
        worker.start()
        worker.wait_until_ready()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    eventually(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    assert project.tasks.skipping.delay(key).get(timeout=PATIENCE)
    worker.kill_all()
