"""The scheduler of django-celery-beat, on every host: for ``CELERY_BEAT_SCHEDULER``."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.beat import Scheduler
from django_celery_beat import schedulers

from celery_redlock.beat.scheduler import scheduler_on


class DatabaseScheduler(schedulers.DatabaseScheduler):
    """Scheduler with django-celery-beat's tables, which claims each tick.

    A subclass of theirs: their admin fails on a setting that names anything else.
    """

    def __new__(cls, app: Celery, *args: Any, **kwargs: Any) -> Scheduler:  # type: ignore[misc]
        """Return the scheduler, which is not an instance of this class.

        Raises:
            ConfigurationError: A setting, a node or an entry's schedule can't be used.
        """
        return scheduler_on(schedulers.DatabaseScheduler, app, *args, **kwargs)
