"""A task for each lifetime with each policy that goes with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from celery import Task
from celery.exceptions import Reject
from celery.signals import task_prerun

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.config.options import ALLOWED, Lifetime, OnConflict
from tests.support.processes.inside import Inside

Decorator = Callable[[Callable[..., Any]], Any]
inside = Inside(__name__)
app = inside.app

TTL = 8.0
"""Of every lease, in seconds: longer than a busy machine stalls."""
PERIOD = 600.0
"""Of every throttle, in seconds."""
INSTEAD = "of a duplicate"
"""The result of what ends by `complete`."""


class NotToday(Exception):
    """What a task fails with."""


def options(lifetime: Lifetime, policy: OnConflict) -> dict[str, Any]:
    chosen = {
        "lock_key": "{key}",
        "lock_lifetime": lifetime.value,
        "lock_on_conflict": policy.value,
        "lock_ttl": PERIOD if lifetime is Lifetime.UNTIL_EXPIRED else TTL,
    }
    if policy is OnConflict.COMPLETE:
        chosen["lock_conflict_result"] = INSTEAD
    return chosen


def make(lifetime: Lifetime, policy: OnConflict) -> Any:
    name = f"{__name__}.{lifetime.value}.{policy.value}"

    @singleton_task(app=app, name=name, bind=True, **options(lifetime, policy))
    def body(self: SingletonTask, key: str, gate: str | None = None) -> str:
        inside.run(gate, key=key)
        return str(self.request.id)

    return body


tasks: dict[tuple[Lifetime, OnConflict], Any] = {
    (lifetime, policy): make(lifetime, policy)
    for lifetime, policies in ALLOWED.items()
    for policy in sorted(policies)
}


@task_prerun.connect
def on_prerun(task: Task[Any, Any], **_: Any) -> None:
    inside.note("taken")


# --- tasks that end in other ways -----------------------------------------------------------------


def one(
    name: str, lifetime: Lifetime, policy: OnConflict = OnConflict.SKIP, **more: Any
) -> Decorator:
    """Return the decorator of a bound task with this lifetime and policy."""
    chosen: Any = options(lifetime, policy) | {"bind": True, "max_retries": 20} | more
    decorate: Decorator = singleton_task(app=app, name=f"{__name__}.{name}", **chosen)
    return decorate


def retrying(lifetime: Lifetime) -> Any:
    @one(f"retrying_{lifetime.value}", lifetime)
    def body(
        self: SingletonTask, key: str, times: int, gate: str | None = None, **options: Any
    ) -> int:
        is_last = self.request.retries == times
        inside.run(gate if is_last else None, key=key)
        if not is_last:
            raise self.retry(**{"countdown": 0} | options)
        inside.wait_for_earlier_tries()
        return int(self.request.retries)

    return body


retrying_tasks: dict[Lifetime, Any] = {lifetime: retrying(lifetime) for lifetime in Lifetime}


@one(
    "autoretrying", Lifetime.UNTIL_EXECUTED, autoretry_for=(NotToday,), max_retries=3,
    retry_kwargs={"countdown": 0}, retry_backoff=False,
)  # fmt: skip
def autoretrying(self: SingletonTask, key: str, times: int, gate: str | None = None) -> int:
    inside.run(gate if self.request.retries == times else None, key=key)
    if self.request.retries < times:
        raise NotToday(key)
    inside.wait_for_earlier_tries()
    return int(self.request.retries)


@one("going_on", Lifetime.UNTIL_EXECUTED)
def going_on(self: SingletonTask, key: str) -> int:
    """Send a retry, and end as if nothing had happened."""
    inside.run(key=key)
    if not self.request.retries:
        self.retry(countdown=60, throw=False)
    return int(self.request.retries)


def replacing(lifetime: Lifetime) -> Any:
    @one(f"replacing_{lifetime.value}", lifetime, acks_late=True)
    def body(self: SingletonTask, key: str, times: int = 0, gate: str | None = None) -> int:
        inside.note("begin", key=key)
        try:
            if times:
                raise self.replace(self.si(key, times - 1))
            return int(self.request.replaced_task_nesting)
        finally:
            inside.wait_at(gate)
            inside.note("end", key=key)

    return body


def make_late(lifetime: Lifetime) -> Any:
    @one(f"late_{lifetime.value}", lifetime, acks_late=True)
    def body(self: SingletonTask, key: str, gate: str | None = None) -> str:
        inside.run(gate, key=key)
        return str(self.request.id)

    return body


late_tasks: dict[Lifetime, Any] = {lifetime: make_late(lifetime) for lifetime in Lifetime}


replacing_tasks: dict[Lifetime, Any] = {lifetime: replacing(lifetime) for lifetime in Lifetime}


class Doomed(SingletonTask):
    """It ends before its body begins."""

    abstract = True

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        match kwargs["how"]:
            case "raises":
                raise NotToday
            case "rejected":
                raise Reject(requeue=False)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "retried" if not self.request.retries:
                raise self.retry(countdown=60)


@one("doomed", Lifetime.UNTIL_EXECUTED, base=Doomed)
def doomed(self: SingletonTask, key: str, *, how: str) -> None:
    inside.run(key=key)


@one(
    "impatient", Lifetime.UNTIL_AND_WHILE_EXECUTING, OnConflict.WAIT,
    soft_time_limit=1, time_limit=60,
)  # fmt: skip
def impatient(self: SingletonTask, key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)


@app.task
def plain(key: str) -> None:
    """An ordinary task."""


@one("fenced", Lifetime.WHILE_EXECUTING)
def fenced(self: SingletonTask, key: str, *, fencing_token: int) -> int:
    return fencing_token
