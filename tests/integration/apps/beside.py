"""A task for each lifetime, beside another library: see `tests.integration.compat`."""

from __future__ import annotations

import json
import os
from typing import Any

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.messages.headers import TICK_HEADER
from celery_redlock.signals import lock_conflict, lock_wait_began, tick_processed
from tests.integration.compat.active import activate
from tests.integration.compat.libraries import WAITING
from tests.support.processes.inside import Inside

active = activate()
inside = Inside(__name__, active.app_class)
app = inside.app
# What one process is told besides.
app.conf.update(json.loads(os.environ.get("REDLOCK_TEST_CONF", "{}")))
active.watch(inside.note)
active.add_tasks(app)
if "REDLOCK_TEST_REFUSED" in os.environ:
    active.add_refused_task(app)

TTL = 2.0
"""Of every lease, in seconds."""
PERIOD = 600.0
"""Of every throttle, in seconds."""


def make(lifetime: Lifetime, policy: OnConflict) -> Any:
    @singleton_task(
        app=app, name=f"{__name__}.{lifetime.value}.{policy.value}", bind=True, lock_key="{key}",
        lock_lifetime=lifetime.value, lock_on_conflict=policy.value,
        lock_ttl=PERIOD if lifetime is Lifetime.UNTIL_EXPIRED else TTL,
        **({"base": active.base} if active.base else {}),
    )  # fmt: skip
    def body(self: SingletonTask, key: str, gate: str | None = None) -> str:
        headers: Any = self.request.headers or {}
        inside.run(gate, key=key, seen=bool(active.seen()), slot=headers.get(TICK_HEADER))
        return str(self.request.id)

    return body


_tasks = {(lifetime, OnConflict.SKIP): make(lifetime, OnConflict.SKIP) for lifetime in Lifetime} | {
    (lifetime, OnConflict.WAIT): make(lifetime, OnConflict.WAIT) for lifetime in WAITING
}


def task_of(lifetime: Lifetime, policy: OnConflict) -> Any:
    """Return the task with this lifetime and policy."""
    return _tasks[lifetime, policy]


@lock_conflict.connect
def on_conflict(task_id: str, **_: Any) -> None:
    inside.note("conflict", of=task_id)


@lock_wait_began.connect
def on_wait(task_id: str, **_: Any) -> None:
    inside.note("waits", of=task_id)


@tick_processed.connect
def on_tick(entry: Any, slot: str, outcome: str, **_: Any) -> None:
    inside.note("tick", entry=entry.name, slot=slot, outcome=outcome)


app.conf.beat_schedule = {
    name: {
        "task": task_of(Lifetime(name.partition(" ")[0]), OnConflict.SKIP).name,
        "schedule": due,
        "args": [name],
    }
    for name, due in (app.conf.get("test_entries") or {}).items()
}
