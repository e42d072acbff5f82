"""Tasks of few keys that meet each other: one for each policy, acknowledged early and late."""

from __future__ import annotations

import random
import time
from typing import Any

from kombu.transport.redis import QoS

from celery_redlock import LockHeld, lock_conflict, singleton_task
from tests.support.processes import publishing
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
POLICIES = ("reschedule", "coalesce", "skip")
KEYS = ("a", "b")
TTL_S = 8


def _make(policy: Any, *, late: bool) -> Any:
    name = f"{policy}-{'late' if late else 'early'}"

    @singleton_task(
        app=app,
        name=name,
        lock_key="{key}",
        lock_on_conflict=policy,
        lock_ttl=TTL_S,
        acks_late=late,
        reject_on_worker_lost=late,
    )
    def body(key: str, pause: float) -> None:
        inside.note("begin", key=f"{name}:{key}")
        time.sleep(pause)
        inside.note("end", key=f"{name}:{key}")

    return body


bodies = [_make(policy, late=late) for policy in POLICIES for late in (False, True)]


@lock_conflict.connect
def on_conflict(sender: Any, task_id: str, error: LockHeld, outcome: str, **_: Any) -> None:
    inside.note("conflict", call=task_id, task=sender.name, outcome=outcome)


# A Redis broker has given a message away, and its client has not noted yet that it got it: whoever
# is cut off there loses it, with or without a lock.
_append = QoS.append


def _append_or_note(self: Any, message: Any, delivery_tag: Any) -> None:
    try:
        _append(self, message, delivery_tag)
    except Exception:
        inside.note("dropped", call=message.headers.get("id"))
        raise


setattr(QoS, "append", _append_or_note)  # noqa: B010 - an assignment is not for methods


def publish(number: int, storm: str, seconds: str, pause: str) -> None:
    """Publish calls for so long, about one a `pause`; note which the broker has confirmed."""
    chance = random.Random(f"{storm}{number}")
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        key, length = chance.choice(KEYS), chance.choice([0.05, 0.3, 0.8])
        publishing.publish(inside, chance.choice(bodies), key, length)
        time.sleep(chance.uniform(0, 2 * float(pause)))
