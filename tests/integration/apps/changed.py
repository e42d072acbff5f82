"""A task whose lifetime each process has of its own, as while a deploy changes it."""

from __future__ import annotations

import os

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.config.options import Lifetime
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app

VARIABLE = "REDLOCK_TEST_LIFETIME"
PERIOD = 600.0
"""Of the throttle, in seconds."""


def ttl_of(lifetime: Lifetime) -> float:
    return PERIOD if lifetime.is_throttle else 8.0


_lifetime = Lifetime(os.environ.get(VARIABLE, Lifetime.WHILE_EXECUTING))


@singleton_task(
    app=app, bind=True, lock_key="{key}", lock_lifetime=_lifetime.value, lock_ttl=ttl_of(_lifetime)
)
def changing(self: SingletonTask, key: str, retry_in: str | None = None) -> int:
    """Run; the first time, retry in another queue."""
    inside.run(key=key)
    if retry_in and not self.request.retries:
        raise self.retry(countdown=0, queue=retry_in)
    return int(self.request.retries)
