"""Tasks whose locks are held in every way; each notes its runs and waits at the gate it is given.

`key` alone names the lock, so that two runs of one key can be told apart by what else they get.
"""

from __future__ import annotations

import ctypes
from typing import Any

from celery import Task

from celery_redlock import SingletonTask, current_lease, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app


class NotToday(Exception):
    """What a task fails with."""


# --- one policy each ------------------------------------------------------------------------------


@singleton_task(app=app, lock_key="{key}")
def skipping(key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@singleton_task(app=app, lock_key="{key}", ignore_result=True)
def forgetful(key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)


@singleton_task(app=app, lock_key="{key}", lock_on_conflict="raise")
def raising(key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@singleton_task(
    app=app, lock_key="{key}", lock_on_conflict="reschedule", lock_ttl=8, max_retries=0, bind=True
)
def rescheduling(self: SingletonTask, key: str, gate: str | None = None) -> int:
    shown = [self.request.get(name) for name in ("argsrepr", "kwargsrepr")]
    inside.run(gate, key=key, shown=shown)
    return int(self.request.retries)


@singleton_task(app=app, lock_key="{key}", lock_on_conflict="reschedule")
def rescheduling_long(key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@singleton_task(
    app=app,
    lock_key="{key}",
    lock_on_conflict="reschedule",
    lock_ttl=8,
    autoretry_for=(NotToday,),
    max_retries=2,
    retry_backoff=False,
    retry_kwargs={"countdown": 0},
)
def failing_after_a_reschedule(key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
    if gate is None:
        raise NotToday(key)


@singleton_task(app=app, lock_key="{key}", lock_on_conflict="wait")
def waiting(key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


# --- the lease and its token ----------------------------------------------------------------------


@singleton_task(app=app, lock_key="{key}", bind=True)
def telling(self: SingletonTask, key: str, *, fencing_token: int) -> list[int | None]:
    lease = current_lease()
    assert lease is self.lease
    assert lease is not None
    lease.ensure()
    return [fencing_token, self.fencing_token, lease.token]


@singleton_task(app=app, lock_key="{key}", lock_ttl=5)
def brief(key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@singleton_task(app=app, lock_key="{key}", lock_ttl=5, bind=True)
def hogging(self: SingletonTask, key: str, seconds: int) -> bool:
    """Hold the GIL: no other thread of this process runs meanwhile. Tell if the lease is over."""
    inside.note("begin", key=key)
    ctypes.PyDLL(None).sleep(seconds)
    assert self.lease is not None
    return self.lease.lost or not self.lease.remaining()


@singleton_task(app=app, lock_key="{key}", lock_min_hold=8, bind=True, max_retries=1)
def lingering(self: SingletonTask, key: str, *, times: int = 1) -> int | None:
    inside.run(key=key)
    if self.request.retries + 1 < times:
        raise self.retry(countdown=0)
    inside.wait_for_earlier_tries()
    return self.fencing_token


@singleton_task(
    app=app, lock_key="{key}", lock_ttl=3, lock_max_hold=3, lock_on_lost="continue", bind=True
)
def overstaying(self: SingletonTask, key: str, gate: str | None = None) -> bool:
    inside.run(gate, key=key)
    assert self.lease is not None
    return self.lease.lost


# --- ways to end ----------------------------------------------------------------------------------


@singleton_task(app=app, lock_key="{key}")
def failing(key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
    raise NotToday(key)


@singleton_task(app=app, lock_key="{key}", bind=True, max_retries=3)
def retrying(self: SingletonTask, key: str) -> list[int | None]:
    inside.run(key=key)
    if self.request.retries < 3:
        raise self.retry(countdown=0)
    inside.wait_for_earlier_tries()
    return [self.fencing_token]


# --- without a quorum -----------------------------------------------------------------------------


@singleton_task(app=app, lock_key="{key}", lock_on_unavailable="reschedule", bind=True)
def patient(self: SingletonTask, key: str) -> list[int | None]:
    inside.run(key=key)
    return [self.request.retries, self.fencing_token]


@singleton_task(app=app, lock_key="{key}", lock_on_unavailable="run", bind=True)
def reckless(self: SingletonTask, key: str, depth: int = 0, *, fencing_token: int) -> list[Any]:
    inside.run(key=key)
    if depth:
        # A plain call, and no second try for the lock.
        nested: list[Any] = self(key, depth - 1)
        return nested
    return [fencing_token, self.fencing_token, current_lease() is None]


# --- calls within a run ---------------------------------------------------------------------------


@singleton_task(app=app, bind=True)
def counting_down(self: SingletonTask, n: int, *, fencing_token: int) -> list[int | None]:
    """Call itself as a plain function, with another key: no lock, and no token."""
    return [fencing_token] if n == 0 else [fencing_token, *self(n - 1)]


class Counted(Task):  # type: ignore[type-arg]
    """A base with a `__call__` of its own that leaves the rest to Celery's."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inside.note("call")
        return super().__call__(*args, **kwargs)


@singleton_task(app=app, base=Counted, bind=True)
def counting_down_on_a_base(self: SingletonTask, n: int, *, fencing_token: int) -> list[int | None]:
    return [fencing_token] if n == 0 else [fencing_token, *self(n - 1)]


@singleton_task(app=app, bind=True)
def calling_another(self: SingletonTask, key: str) -> list[Any]:
    """Call another singleton task as a plain function: neither lock nor token."""
    return [self.fencing_token, skipping(key), self.fencing_token]


@singleton_task(app=app, lock_key="{key}", bind=True)
def nesting(self: SingletonTask, key: str, depth: int = 1) -> list[Any]:
    """Send itself under its own lock."""
    return [self.fencing_token, self.delay(key, depth - 1).state] if depth else []


@singleton_task(app=app)
def anything(argument: Any) -> None: ...


@app.task
def collect(results: Any = None) -> Any:
    """An ordinary task, for canvases."""
    inside.note("collect", results=results)
    return results


@app.task
def on_error(request: Any, error: Any, traceback: Any) -> None:
    inside.note("on_error", failed=request.id)
