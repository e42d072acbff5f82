"""Tasks that kill their process and find their lock held when they are delivered again."""

from __future__ import annotations

import os
import signal
from typing import Any

import redis
from kombu import Queue

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.messages.headers import publication_of
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.scripts import lock_keys
from tests.support.processes.inside import Inside

LIMIT = 3
inside = Inside(__name__)
app = inside.app
queue = str(app.conf.task_default_queue)
dead_letters = f"{queue}-dead"
app.conf.task_queues = [
    Queue(
        queue,
        routing_key=queue,
        queue_arguments={
            "x-queue-type": "quorum",
            "x-delivery-limit": LIMIT,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead_letters,
        },
    )
]


def lock_key(name: str) -> str:
    """Return where the lock `name` of the poison is on each node."""
    return lock_keys("redlock", f"{poison.name}:{name}")[0]


@singleton_task(
    app=app, lock_key="{key}", lock_ttl=1, lock_on_conflict="reschedule", bind=True,
    acks_late=True, reject_on_worker_lost=True,
)  # fmt: skip
def poison(self: SingletonTask, key: str, *, by_other: bool) -> None:
    """Leave the lock to another task, or to one that looks like this very run; and die."""
    request: Any = self.request
    holder = "another" if by_other else str(request.id)
    owner = new_owner(holder, publication="" if by_other else publication_of(request))
    for url in app.conf.redlock_nodes:
        with redis.Redis.from_url(url) as node:
            node.set(lock_key(key), owner, px=30_000)
    inside.note("begin", key=key)
    os.kill(os.getpid(), signal.SIGKILL)
