"""A task of which one message for each key is in the queue or runs, and whoever publishes it."""

from __future__ import annotations

import random
import time
from typing import Any

from celery.utils import uuid

from celery_redlock import lock_released, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
_TAKES_S = 0.01


@singleton_task(
    app=app, name="publish_storm.work", lock_key="{key}", lock_lifetime="until_executed"
)
def work(key: str) -> None:
    inside.note("begin", key=key)
    time.sleep(_TAKES_S)
    inside.note("end", key=key)


@lock_released.connect
def on_released(**_: Any) -> None:
    inside.note("released")


def publish(number: int, publishes: str, keys: str) -> None:
    """Publish so many, and note for each whose result was returned."""
    chance = random.Random(number)
    for _ in range(int(publishes)):
        key, task_id, asked_at = f"key-{chance.randrange(int(keys))}", uuid(), time.monotonic()
        result = work.apply_async((key,), task_id=task_id)
        inside.note(
            "published", key=key, asked_at=asked_at, returned=result.id, is_new=result.id == task_id
        )
