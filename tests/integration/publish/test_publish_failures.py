"""A publish that sends nothing: a duplicate, a failure, no quorum; and a producer's wrong clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule
from celery.signals import before_task_publish
from kombu.exceptions import EncodeError, OperationalError

from celery_redlock import ConfigurationError, LockHeld, QuorumUnavailable
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.headers import TICK_HEADER
from celery_redlock.signals import lock_conflict
from celery_redlock.task import publication
from celery_redlock.throttled_log import ThrottledLog
from tests.integration.conftest import NewNodes, NewProject
from tests.integration.publish.conftest import RESERVING
from tests.support.eventually import eventually
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


# --- a duplicate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [OnConflict.SKIP, OnConflict.RAISE])
def test_a_duplicate_is_told_of_once(
    project: Project, key: str, policy: OnConflict, caplog: pytest.LogCaptureFixture
) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, policy]
    first = task.delay(key)
    told: list[dict[str, Any]] = []

    def on_conflict(**about: Any) -> None:
        told.append(about)

    lock_conflict.connect(on_conflict, sender=task)
    with caplog.at_level("INFO", "celery_redlock"):
        if policy is OnConflict.RAISE:
            with pytest.raises(LockHeld):
                task.delay(key)
        else:
            assert task.delay(key).id == first.id
    lock_conflict.disconnect(on_conflict, sender=task)
    [about] = told
    assert about["outcome"] == policy.value
    [line] = [record for record in caplog.records if "not published" in record.message]
    assert first.id in line.message


@pytest.mark.parametrize("header", [TICK_HEADER, "celery_beat_task"])
def test_nothing_is_raised_into_beat(project: Project, key: str, header: str) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.RAISE]
    first = task.delay(key)
    length = project.queue_length()
    assert task.apply_async((key,), headers={header: "x"}).id == first.id
    assert project.queue_length() == length


def test_celerys_own_beat_goes_on_after_a_duplicate(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.RAISE]
    scheduler = Scheduler(app=project.app, lazy=True)
    entry = ScheduleEntry(
        name="entry", task=task.name, args=(key,), schedule=schedule(60.0), app=project.app
    )
    for _ in range(2):
        scheduler.apply_entry(entry)
    assert project.is_held(key)


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


def test_an_argument_that_no_key_can_be_made_of_is_refused(project: Project) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
    with pytest.raises(ConfigurationError):
        task.delay(object())


def test_wrong_arguments_are_celerys_to_refuse(project: Project, key: str, task: Any) -> None:
    with pytest.raises(TypeError, match="missing"):
        task.delay()
    assert not project.is_held(key)


# --- without a quorum, without a lock -------------------------------------------------------------


@pytest.mark.parametrize("policy", ["reschedule", "raise", "run"])
def test_without_a_quorum_a_message_is_sent_or_refused(
    new_project: NewProject,
    new_nodes: NewNodes,
    policy: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = new_nodes(3)
    project = new_project("lifetimes", nodes=nodes, redlock_on_unavailable=policy)
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
    nodes[0].stop()
    nodes[1].stop()
    if policy == "raise":
        with pytest.raises(QuorumUnavailable):
            task.delay("key")
        assert project.messages() == []
        return
    monkeypatch.setattr(publication, "_unreserved", ThrottledLog())
    first, second = task.delay("key"), task.delay("key")
    assert first.id != second.id
    assert [HEADER in one["headers"] for one in project.messages()] == [False, False]
    said = [one.message for one in caplog.records if "without a reservation" in one.message]
    assert len(said) == 1, "once, and not for each message"
    nodes[0].start()

    def is_reserved() -> bool:
        task.delay("key")
        return HEADER in project.messages()[-1]["headers"]

    eventually(is_reserved)
    assert "published with reservations again count=" in caplog.text


@pytest.mark.parametrize("conf", [{"redlock_enabled": False}, {"task_always_eager": True}])
def test_disabled_or_eager_nothing_is_reserved(
    new_project: NewProject, conf: dict[str, Any]
) -> None:
    project = new_project("lifetimes", **conf)
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
    results = [task.delay("key") for _ in range(2)]
    assert results[0].id != results[1].id
    assert not project.is_held(":key")


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
