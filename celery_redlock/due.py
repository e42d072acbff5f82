"""Entries that are due at their slots, and not some time after they ran last."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery.schedules import BaseSchedule, schedstate

from .slots import Moment, is_celerys, next_slot, slots_between

_NEVER_S = 366 * 86_400.0
Now = Callable[[], Moment]


class BySlots(BaseSchedule):
    """Stands in for a schedule of Celery's own.

    An interval of Celery's begins whenever its entry ran last, and around a clock change what a
    crontab says depends on that, too; a slot does not.

    Args:
        due: The schedule.
        since: When its entry begins; None for no beginning.
        now: Returns the present time.
    """

    def __init__(self, due: BaseSchedule, since: Moment | None, now: Now) -> None:
        super().__init__(app=due.app)
        vars(self)["tz"] = due.tz
        self._due = due
        self._since = since
        self._now = now

    def now(self) -> Moment:
        """Return the time that the schedule goes by."""
        return self._due.now()

    def redlock_slots(self, after: Moment, until: Moment) -> Iterable[Moment]:
        """Return its slots: see `slots.HasSlots`."""
        return slots_between(self._due, after, until, self._since)

    def remaining_estimate(self, last_run_at: Moment) -> dt.timedelta | None:  # type: ignore[override]
        """Return how far off the next slot is, negative if it is over; None if there is none."""
        slot = next_slot(self._due, aware(last_run_at), self._since)
        return slot - self._now() if slot else None

    def is_due(self, last_run_at: Moment) -> schedstate:
        """Return whether a slot came since the last run, and how far off the next is, seconds."""
        left = self.remaining_estimate(last_run_at)
        if is_due := left is not None and left <= dt.timedelta():
            left = self.remaining_estimate(self._now())
        return schedstate(is_due, _NEVER_S if left is None else left.total_seconds())


@contextmanager
def by_slots(entries: Iterable[Any], now: Now) -> Iterator[None]:
    """Let entries be due at their slots inside; they are stored and sent as they are."""
    plain = [(entry, entry.schedule) for entry in entries if is_celerys(entry.schedule)]
    for entry, due in plain:
        entry.schedule = BySlots(due, beginning_of(entry), now)
    try:
        yield
    finally:
        for entry, due in plain:
            entry.schedule = due


def beginning_of(entry: Any) -> Moment | None:
    """Return the start time of an entry of django-celery-beat's, or None without one."""
    start = getattr(getattr(entry, "model", None), "start_time", None)
    return aware(start) if start else None


def aware(moment: Moment) -> Moment:
    """Return `moment`, in UTC if it names no zone, as schedulers mean it."""
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
