"""Tasks that are interrupted while they give their lock back; and one that takes many."""

from __future__ import annotations

from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Task

from celery_redlock import SingletonTask, current_lease, singleton_task
from celery_redlock.execution.running import current
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
app.conf.redlock_ttl = 60.0  # a release comes sooner: judges.endings.LIMIT_S


@singleton_task(app=app, lock_key="{key}")
def interrupted(key: str, moment: str) -> str:
    """Return, and reach the soft time limit while the lock is given back, or right after that."""
    run = current.get()
    assert run is not None
    redlock: Any = run.message.redlock
    release = redlock.release

    def interrupted_release(*args: Any, **kwargs: Any) -> None:
        redlock.release = release
        if moment == "after":
            release(*args, **kwargs)
        raise SoftTimeLimitExceeded

    redlock.release = interrupted_release
    return "done"


@singleton_task(app=app, lock_key="{key}")
def exiting(key: str) -> None:
    raise SystemExit(3)


@singleton_task(app=app, lock_key="{key}")
def surviving(key: str) -> str:
    """Survive the SystemExit of a task within."""
    try:
        exiting.apply((f"{key}-within",))
    except SystemExit:
        inside.note("survived", key=key)
    return "done"


@app.task(bind=True)
def plain_surviving(self: Task[Any, Any], key: str) -> str:
    try:
        exiting.apply((f"{key}-within",))
    except SystemExit:
        inside.note("survived", key=key)
    return "done"


@app.task
def ordinary() -> bool:
    """Tell whether an ordinary task has no lease."""
    return current_lease() is None


# --- many locks while the main process stands still -----------------------------------------------


@singleton_task(app=app, lock_key="{key}", bind=True)
def churning(self: SingletonTask, key: str, gate: str, times: int) -> list[bool]:
    """Take and give back many locks, one after the other, and one more at the end."""
    inside.note("begin", key=key)
    inside.wait_at(gate)
    for number in range(times):
        quick.apply((f"{key}-{number}",))
    inside.note("churned", key=key)
    inside.wait_at(f"{gate}-2")
    assert self.lease is not None
    return [self.lease.lost]


@singleton_task(app=app, lock_key="{key}", lock_ttl=3)
def quick(key: str) -> None:
    """Hold the lock for a moment."""
