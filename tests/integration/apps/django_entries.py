"""Make an entry of django-celery-beat: a process of its own, since Django is set up once.

python -m tests.integration.apps.django_entries clocked TASK 1795000000.0
"""

from __future__ import annotations

import datetime as dt
import sys

import django

django.setup()

from django_celery_beat.models import (  # noqa: E402  # only after setup()
    ClockedSchedule,
    IntervalSchedule,
    PeriodicTask,
)


def make(kind: str, task: str, at: float) -> None:
    """Make an entry that is due once, at a time."""
    moment = dt.datetime.fromtimestamp(at, dt.timezone.utc)
    if kind == "clocked":
        what = {"clocked": ClockedSchedule.objects.create(clocked_time=moment)}
    else:
        hourly = IntervalSchedule.objects.create(every=1, period="hours")
        what = {"interval": hourly, "start_time": moment}
    PeriodicTask.objects.create(name=kind, task=task, args=f'["{kind}"]', one_off=True, **what)


if __name__ == "__main__":
    _, kind, task, at = sys.argv
    make(kind, task, float(at))
