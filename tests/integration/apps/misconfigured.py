"""A task whose options can't be."""

from __future__ import annotations

from celery_redlock import singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app


@singleton_task(app=app, lock_ttl=3600)
def too_long() -> None:
    inside.run()
