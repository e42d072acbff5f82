"""Entries for beat, as the configuration's `test_entries` describes them, and their tasks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from celery import Task, current_task
from celery.schedules import BaseSchedule, crontab

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.messages.headers import TICK_HEADER
from tests.support.processes.inside import Inside

if "DJANGO_SETTINGS_MODULE" in os.environ:
    import django

    django.setup()

inside = Inside(__name__)
app = inside.app
# What one process is told besides.
app.conf.update(json.loads(os.environ.get("REDLOCK_TEST_CONF", "{}")))


def note(event: str, entry: str) -> None:
    """Note which tick this execution is of."""
    headers: Mapping[str, Any] = current_task.request.headers or {}
    inside.note(event, entry=entry, slot=headers.get(TICK_HEADER), wall=time.time())


@singleton_task(app=app, lock_on_conflict="wait", lock_wait=60)
def once(entry: str) -> None:
    """Run, one tick after the other."""
    note("run", entry)


@app.task
def plain(entry: str) -> None:
    """Run, and be no singleton."""
    note("run", entry)


@singleton_task(app=app, lock_lifetime="until_executed", lock_on_conflict="raise", lock_key=[])
def reserved(entry: str) -> None:
    """Refuse a second message while one waits."""
    note("run", entry)
    inside.wait_at("held")


@singleton_task(app=app, lock_key=[], bind=True)
def held(self: SingletonTask, entry: str) -> None:
    """Be skipped while one runs."""
    note("run", entry)
    inside.wait_at("held")


class Odd(BaseSchedule):
    """A schedule class of the user's own whose slots nobody knows."""

    def is_due(self, last_run_at: Any) -> Any:
        return False, 1.0


def schedule_of(spec: Mapping[str, Any]) -> Any:
    """Return the schedule of an entry."""
    if "crontab" in spec:
        return crontab.from_string(spec["crontab"])
    return Odd() if spec.get("odd") else float(spec["every"])


def task_of(spec: Mapping[str, Any]) -> Task[Any, Any]:
    task: Task[Any, Any] = globals()[spec.get("task", "once")]
    return task


entries: Mapping[str, Mapping[str, Any]] = app.conf.get("test_entries") or {}
app.conf.beat_schedule = {
    name: {
        "task": task_of(spec).name,
        "schedule": schedule_of(spec),
        "args": [name],
        "options": {"headers": spec.get("headers") or {}},
    }
    for name, spec in entries.items()
    if not spec.get("unnamed")
}
for name, spec in entries.items():
    if spec.get("unnamed"):
        app.add_periodic_task(schedule_of(spec), task_of(spec).s(name))
