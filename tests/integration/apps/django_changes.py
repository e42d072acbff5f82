"""Change entries of django-celery-beat, as its admin does; print when that was.

A process of its own, since Django is set up once: `python -m …django_changes disable ENTRY TASK`,
or without arguments for a change on each line of its input.
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
    PeriodicTasks,
)


def change(how: str, name: str, task: str, value: str = "") -> None:
    """Change one entry.

    Args:
        how: "every": due every `value` seconds, made if there is none; "clocked": make one for the
            time `value`, seconds since the epoch; "rename": to `value`; "delete", "disable" and
            "enable".
        name: The entry's name.
        task: The task of a new one.
        value: See `how`.
    """
    rows = PeriodicTask.objects.filter(name=name)
    if how == "every":
        # Not `get_or_create`: two replicas that start at the same time may have made one each.
        same = IntervalSchedule.objects.filter(every=value, period="seconds")
        every = same.first() or IntervalSchedule.objects.create(every=value, period="seconds")
        row = rows.first() or PeriodicTask(name=name, task=task, args=f'["{name}"]')
        row.interval = every
        row.save()
    elif how == "clocked":
        moment = dt.datetime.fromtimestamp(float(value), dt.timezone.utc)
        at = ClockedSchedule.objects.create(clocked_time=moment)
        PeriodicTask.objects.create(
            name=name, task=task, args=f'["{name}"]', one_off=True, clocked=at
        )
    elif how == "rename":
        row = rows.get()
        row.name, row.args = value, f'["{value}"]'
        row.save()
    elif how == "delete":
        rows.get().delete()
    else:
        # The actions of its admin.
        rows.update(enabled=how == "enable", last_run_at=None)
        PeriodicTasks.update_changed()


if __name__ == "__main__":
    for words in [sys.argv[1:]] if sys.argv[1:] else map(str.split, sys.stdin):
        change(*words)
        print(time.time(), flush=True)  # noqa: T201
