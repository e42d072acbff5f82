"""An app all of whose tasks are singleton tasks, for canvases of every form.

Each call names the key of its lock, so that it has one of its own unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from celery_redlock import SingletonTask
from tests.support.processes.inside import Inside

inside = Inside(__name__, task_cls=SingletonTask)
app = inside.app

TAKEN = 100


class Refused(Exception):
    """What a task fails with."""


def _add(x: int, y: int, *, key: str, gate: str | None = None) -> int:
    inside.run(gate, key=key)
    return x + y


@app.task(lock_key="{key}", lock_on_conflict="skip")
def skip(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(lock_key="{key}", lock_on_conflict="complete", lock_conflict_result=TAKEN)
def complete(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(name="canvas.raise", lock_key="{key}", lock_on_conflict="raise")
def raise_(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(lock_key="{key}", lock_on_conflict="reschedule", lock_ttl=8)
def reschedule(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(lock_key="{key}", lock_on_conflict="wait", lock_wait=60)
def wait(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(lock_key="{key}", lock_on_conflict="coalesce", lock_ttl=8)
def coalesce(x: int, y: int = 0, *, key: str, gate: str | None = None) -> int:
    return _add(x, y, key=key, gate=gate)


@app.task(lock_key="{key}")
def total(numbers: list[int], *, key: str, gate: str | None = None) -> int:
    inside.run(gate, key=key)
    return sum(numbers)


@app.task(lock_key="{key}")
def fail(x: int = 0, *, key: str) -> None:
    raise Refused(key)


@app.task(bind=True, lock_key="{key}")
def becomes(self: SingletonTask, x: int, *, key: str) -> None:
    raise self.replace(skip.si(x, 1, key=f"{key}-replaced"))


@app.task(bind=True, lock_key="{key}", max_retries=3)
def at_third(self: SingletonTask, x: int, *, key: str) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    inside.wait_for_earlier_tries()
    return x


@app.task(lock_key=lambda *args, **kwargs: uuid4().hex)
def note(*seen: Any, key: str) -> None:
    """Be a callback or an errback."""
    inside.run(None, key=key)


@app.task
def double(x: int) -> int:
    return 2 * x


@app.task
def multiply(x: int, y: int) -> int:
    return x * y
