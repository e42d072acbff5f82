"""A publish that fails, and a producer's wrong clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery.signals import before_task_publish
from kombu.exceptions import EncodeError, OperationalError

from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.conftest import NewProject
from tests.integration.publish.conftest import RESERVING
from tests.support.faults.clock_shim import WallClock
from tests.support.processes.inside import FOLDER_VARIABLE
from tests.support.processes.project import Project
from tests.support.root import ROOT

HOUR = 3600.0
SOME_TIME = 60.0
"""Seconds that a test may take: a figure that is counted down is somewhat lower by then."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    """Without a worker: messages stay where they are sent."""
    return new_project("lifetimes")


# --- a publish that fails -------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", RESERVING)
def test_a_publish_that_fails_gives_its_reservation_back(
    project: Project, key: str, lifetime: Lifetime
) -> None:
    task = project.tasks.tasks[lifetime, OnConflict.RAISE]
    reserved = []

    def look(**_: Any) -> None:
        reserved.append(project.is_held(key))

    # Not weakly: up to Celery 5.6 those who publish miss who comes after one that has died.
    before_task_publish.connect(look, sender=task.name, weak=False)
    nowhere = project.app.connection_for_write(
        "redis://127.0.0.1:1/0", transport_options={"max_retries": 0, "interval_start": 0}
    )
    with pytest.raises(EncodeError):
        task.delay(key, gate=object())
    with nowhere, pytest.raises(OperationalError):
        task.apply_async((key,), connection=nowhere, retry=False)
    before_task_publish.disconnect(look, sender=task.name)
    # It was reserved each time, or the second would have been a duplicate.
    assert reserved == [True, True]
    assert not project.is_held(key)
    assert task.delay(key).id


# --- another machine's clock ----------------------------------------------------------------------

PUBLISH = """
import importlib, sys
task = importlib.import_module(sys.argv[1]).tasks["until_executed", "skip"]
print(task.apply_async((sys.argv[2],), **eval(sys.argv[3])).id)
"""


@pytest.mark.parametrize(
    ("off", "options", "expected"),
    [
        (-3600, {"countdown": 600}, HOUR + 600),
        pytest.param(-3600, {}, HOUR, marks=pytest.mark.long),
        pytest.param(3600, {"countdown": 600}, HOUR + 600, marks=pytest.mark.long),
        pytest.param(3600, {}, HOUR, marks=pytest.mark.long),
    ],
)
def test_a_producers_clock_may_be_an_hour_off(
    project: Project,
    key: str,
    task: Any,
    new_wall_clock: Callable[[], WallClock],
    off: float,
    options: dict[str, Any],
    expected: float,
) -> None:
    clock = new_wall_clock()
    clock.step(off)
    told = subprocess.run(
        [sys.executable, "-c", PUBLISH, project.module, key, repr(options)],
        env={**clock.env, FOLDER_VARIABLE: str(project.folder), "PATH": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected - SOME_TIME < project.held_for(key) <= expected
    assert task.delay(key).id == told.stdout.strip()
