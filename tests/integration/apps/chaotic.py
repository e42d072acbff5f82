"""Singleton tasks that take down when their lease was valid, and write to a fenced register."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery.signals import task_failure

from celery_redlock import LockHeld, current_lease, lock_conflict, singleton_task
from celery_redlock.redlock.clock import SystemClock
from tests.support.judges.fenced_register import count_up
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
# Workers of two groups reach the same nodes by different ways.
app.conf.update(json.loads(os.environ.get("REDLOCK_TEST_CONF", "{}")))
POLICIES = ("skip", "reschedule", "wait")
_STEP_S = 0.05
_clock = SystemClock()
_resource = redis.Redis.from_url(app.conf.chaos_register)


def _run(key: str, seconds: float) -> None:
    """Be a holder that looks at its lease, but not before it writes."""
    lease = current_lease()
    assert lease is not None
    inside.note("begin", key=key, asked_at=lease.acquired_at, until=lease.deadline)
    try:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(_STEP_S)
            # First whether it is lost, which has another process's word read; then until when.
            if lease.lost:
                break
            inside.note("valid", key=key, until=lease.deadline)
    finally:
        _write(key, lease.token)
    inside.note("end", key=key, lost=lease.lost)


def _write(key: str, token: int) -> None:
    """Count the register of a key up, as whoever has the token."""
    invoked = _clock.now()
    is_accepted = count_up(_resource, inside.folder, key, token)
    inside.note("write", key=key, accepted=is_accepted, invoked=invoked, completed=_clock.now())


def _make(policy: Any, **options: Any) -> Any:
    name = f"{policy}-{options.get('lock_lifetime', 'while_executing')}-late"

    @singleton_task(  # type: ignore[untyped-decorator]
        app=app,
        name=name,
        lock_key="{key}",
        lock_on_conflict=policy,
        lock_ttl=app.conf.redlock_max_ttl,
        acks_late=True,
        reject_on_worker_lost=True,
        **options,
    )
    def body(key: str, seconds: float) -> None:
        _run(f"{name}/{key}", seconds)

    return body


bodies = [_make(policy) for policy in POLICIES]
# A node that is out of reach keeps a reservation until its ttl is over.
bodies.append(_make("reschedule", lock_lifetime="until_executed", lock_queue_ttl=10))


@lock_conflict.connect
def on_conflict(sender: Any, task_id: str, error: LockHeld, outcome: str, **_: Any) -> None:
    inside.note("conflict", call=task_id, task=sender.name, outcome=outcome, holder=error.holder)


@task_failure.connect
def on_failure(task_id: str, exception: BaseException, **_: Any) -> None:
    inside.note("failed", call=task_id, error=repr(exception)[:200])
