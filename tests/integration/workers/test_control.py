"""`celery inspect` and `celery control` see and release the locks of running tasks."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from celery_redlock import LeaseLost
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.commands import celery_of, environment_of
from tests.support.processes.project import Project
from tests.support.processes.start import run
from tests.support.root import ROOT


def celery(project: Project, *command: str) -> Any:
    """Return the answers of the workers, as the command line prints them."""
    # Asked by name: from everybody, answers are awaited for the whole timeout.
    node = f"{project.workers[0]._node}@{socket.gethostname()}"
    ask = (*command, "--destination", node, "--timeout", "20", "--json")
    done = run(celery_of(project, *ask), environment_of(project))
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads(done.stdout)
    [answer] = (answers if isinstance(answers, dict) else answers[0]).values()
    return answer


def test_a_running_tasks_lock_is_shown_and_released(new_project: NewProject) -> None:
    name = "tests.integration.apps.losing.aborted"
    project = new_project("losing", task_annotations={name: {"lock_ttl": 10}})
    key = f"{name}:shown"
    project.start_worker(concurrency=2)
    running = project.tasks.aborted.delay("shown", "sleep", 600.0)
    project.wait_for_note("begin", key="shown")
    [held] = celery(project, "inspect", "redlock_held")
    assert (held["task"], held["task_id"], held["key"]) == (name, running.id, key)
    assert 0 < held["remaining"] <= 10
    answer = celery(project, "control", "redlock_release", key, "another")
    assert answer == {"ok": f"{key} not held by another"}
    assert project.is_held(key)
    answer = celery(project, "control", "redlock_release", key, running.id)
    assert answer == {"ok": f"{key} released, it was held by {running.id}"}
    with pytest.raises(LeaseLost, match=r"it was released by redlock_release at \S+@\S+ at .+ UTC"):
        running.get(timeout=PATIENCE)
    eventually(lambda: not project.is_held(key))
    assert celery(project, "inspect", "redlock_held") == []


def test_an_app_without_tasks_has_the_commands_as_well() -> None:
    # As with Django, whose task modules only a worker imports. A new interpreter, for it is about
    # what is imported.
    for kind, command in (("inspect", "redlock_held"), ("control", "redlock_release")):
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-b", "memory://", kind, "--list"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert command in done.stdout
