"""Tasks that end in every way; each notes its begin and its end, and counts up a register."""

from __future__ import annotations

import time
from typing import Any

import redis
from celery.exceptions import Ignore

from celery_redlock import SingletonTask, current_lease
from tests.support.judges.fenced_register import count_up
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    task_track_started=True,
)
_resource = redis.Redis.from_url(app.conf.storm_register)


class Refused(Exception):
    """What a task fails with."""


def _body(task: Any, key: str, ending: str, pause: float) -> str:
    inside.note("begin", key=key, ending=ending)
    time.sleep(pause)
    lease = current_lease()
    assert lease is not None
    count_up(_resource, inside.folder, key, lease.token)
    is_first = not task.request.retries and not (task.request.delivery_info or {}).get(
        "redelivered"
    )
    inside.note("end", key=key, ending=ending)
    match ending:
        case "exception":
            raise Refused(key)
        case "retry" if task.request.retries < 2:
            raise task.retry(countdown=0, max_retries=5)
        case "ignore":
            raise Ignore
        case "exit" if is_first:
            raise SystemExit(1)
    return ending


def _storm(name: str, **options: Any) -> Any:
    @app.task(base=SingletonTask, bind=True, name=name, lock_key="{key}", **options)
    def storm(self: Any, key: str, ending: str, pause: float) -> str:
        return _body(self, key, ending, pause)

    return storm


skipping = _storm("storm.skipping", lock_on_conflict="skip")
rescheduling = _storm("storm.rescheduling", lock_on_conflict="reschedule", lock_ttl=8)
waiting = _storm("storm.waiting", lock_on_conflict="wait", lock_wait=120, lock_ttl=8)
