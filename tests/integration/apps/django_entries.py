"""Make entries of django-celery-beat that are due once, soon; print when that is.

A process of its own, since Django is set up once: `python -m …django_entries TASK`.
"""

from __future__ import annotations

import datetime as dt
import sys
import time

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
    # From here on, and not from the start of this process, which may have taken longer than that.
    at = time.time() // 1 + 5
    for kind in ("clocked", "interval"):
        make(kind, sys.argv[1], at)
    print(at)  # noqa: T201
