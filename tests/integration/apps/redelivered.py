"""Tasks whose messages are delivered more than once; each notes its runs and waits at its gate."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import current_task
from celery.signals import before_task_publish

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.signals import lock_released
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
# No task may be retried unless it says so: whatever uses up a try shows at once. And no lease ends
# while a busy machine stalls.
locked: Callable[..., Callable[[Callable[..., Any]], SingletonTask]] = partial(
    singleton_task, app=app, lock_key="{key}", lock_ttl=8, bind=True, max_retries=0
)


class NotToday(Exception):
    """What a task fails with."""


@locked()
def plain(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key, retries=self.request.retries)


# --- the other policies ---------------------------------------------------------------------------


@locked(lock_on_conflict="complete", lock_conflict_result="taken")
def completing(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="raise")
def raising(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="reschedule")
def rescheduling(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="coalesce")
def coalescing(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="wait")
def waiting(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="wait", lock_wait=0.2)
def waiting_briefly(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_on_conflict="wait", lock_wait=500)
def waiting_long(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_lifetime="until_executed")
def until_executed(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(lock_lifetime="until_and_while_executing")
def until_and_while(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(
    lock_lifetime="until_and_while_executing", lock_on_conflict="reschedule", lock_queue_ttl=3600
)
def queueing(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    """Its process dies after the message's place in line was renewed, before it is published."""
    return inside.run(gate, key=key)


@before_task_publish.connect
def die_before_it_is_published(sender: str, headers: dict[str, Any], **_: Any) -> None:
    running = current_task.request.id if current_task else None  # type: ignore[truthy-bool]
    has_died = inside.folder / f"died-{headers['id']}"
    if sender == queueing.name and running == headers["id"] and not has_died.exists():
        has_died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


# --- ways to end ----------------------------------------------------------------------------------


@locked()
def failing(self: SingletonTask, key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
    raise NotToday(key)


@locked(track_started=True)
def tracked(self: SingletonTask, key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
    raise NotToday(key)


@locked(acks_on_failure_or_timeout=False)
def unforgiven(self: SingletonTask, key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
    raise NotToday(key)


@locked(time_limit=10)
def limited(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(time_limit=10, acks_on_failure_or_timeout=False)
def limited_and_requeued(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(reject_on_worker_lost=True)
def precious(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


@locked(retry_on_worker_lost=True, max_retries=3, default_retry_delay=0)
def stubborn(self: SingletonTask, key: str, gate: str | None = None) -> int:
    inside.run(None if self.request.retries else gate, key=key, retries=self.request.retries)
    return int(self.request.retries)


@locked(
    lock_lifetime="until_executed", retry_on_worker_lost=True, max_retries=3, default_retry_delay=2
)
def enduring(self: SingletonTask, key: str, gate: str | None = None) -> int:
    inside.run(gate, key=key, retries=self.request.retries)
    return int(self.request.retries)


@locked(acks_late=True, reject_on_worker_lost=True)
def deadly(self: SingletonTask, key: str) -> None:
    inside.run(key=key)
    os.kill(os.getpid(), signal.SIGKILL)


@locked(reject_on_worker_lost=True)
def dying(self: SingletonTask, key: str) -> int | None:
    """Its process dies when the body has ended, before Celery can do anything about it."""
    return inside.run(key=key)


@lock_released.connect
def die(sender: Any, task_id: str, **_: Any) -> None:
    has_died = inside.folder / f"died-{task_id}"
    if sender.name == dying.name and not has_died.exists():
        has_died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@locked(lock_on_lost="continue")
def going_on(self: SingletonTask, key: str, gate: str | None = None) -> int | None:
    return inside.run(gate, key=key)


# --- retries and replacements ---------------------------------------------------------------------


@locked(max_retries=None)
def retrying(self: SingletonTask, key: str, times: int, gate: str | None = None) -> int:
    """Retry at once, `times` times; then wait at the gate."""
    retries = self.request.retries
    inside.run(gate if retries == times else None, key=key, retries=retries)
    if retries < times:
        raise self.retry(countdown=0)
    inside.wait_for_earlier_tries()
    return int(retries)


@locked(
    autoretry_for=(NotToday,), max_retries=20, retry_backoff=False, retry_kwargs={"countdown": 0}
)
def autoretrying(self: SingletonTask, key: str, times: int) -> int:
    inside.run(key=key, retries=self.request.retries)
    if self.request.retries < times:
        raise NotToday(key)
    inside.wait_for_earlier_tries()
    return int(self.request.retries)


@locked()
def replacing(self: SingletonTask, key: str, times: int, gate: str | None = None) -> Any:
    """Take its own place, `times` times; then wait at the gate."""
    inside.run(None if times else gate, key=key, times=times)
    return self.replace(replacing.si(key, times - 1, gate)) if times else "replaced"


@app.task
def give_the_alarm(*_: Any) -> None:
    """An ordinary task, for `link_error`."""
    inside.note("alarm")


@app.task
def collect(results: Any = None) -> Any:
    """An ordinary task, for canvases."""
    inside.note("collect", results=results)
    return results
