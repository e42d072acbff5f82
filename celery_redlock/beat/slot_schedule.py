"""Schedules that are due at their slots, not some time after the last run."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from celery.schedules import BaseSchedule, schedstate

from .slots import Moment, is_celerys, next_slot, slots_between

_AGAIN_S = 1.0
_NEVER_S = 366 * 86_400.0
Now = Callable[[], Moment]


class SlotSchedule:
    """Replacement for a schedule of Celery's own, due at its slots.

    An interval of Celery's starts at the entry's last run, and around a clock change a crontab's
    answer depends on that, too; a slot does not.

    Args:
        due: The schedule.
        since: When its entry begins; None for no beginning.
        now: Returns the present time.
        seen: The moment up to which slots were seen. None: the last run.
    """

    def __init__(
        self, due: BaseSchedule, since: Moment | None, now: Now, seen: Moment | None = None
    ) -> None:
        self._due = due
        self._since = since
        self._now = now
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        """Return what else Celery and others ask a schedule for, such as its present time."""
        return getattr(self._due, name)

    def redlock_slots(self, after: Moment, until: Moment) -> Iterable[Moment]:
        """Return the schedule's slots: see `slots.HasSlots`."""
        return slots_between(self._due, after, until, self._since)

    def remaining_estimate(self, last_run_at: Moment) -> dt.timedelta | None:
        """Return the time until the next slot, negative if it has passed; None without one."""
        slot = next_slot(self._due, aware(last_run_at), self._since)
        return slot - self._now() if slot else None

    def is_due(self, last_run_at: Moment) -> schedstate:
        """Return whether an unseen slot has come, and the seconds until the next one."""
        left = self.remaining_estimate(self._seen or last_run_at)
        if is_due := left is not None and left <= dt.timedelta():
            left = self.remaining_estimate(self._now())
        return schedstate(is_due, _NEVER_S if left is None else left.total_seconds())


class PendingTicksSchedule:
    """Replacement for a schedule of another kind while ticks of its entry are queued.

    The last run does not show yet that they were seen, and some schedules ignore it.

    Args:
        due: The schedule.
        since: When its entry begins; None for no beginning.
        now: Returns the present time.
        seen: The moment up to which slots were seen.
    """

    def __init__(self, due: Any, since: Moment | None, now: Now, seen: Moment) -> None:
        self._due = due
        self._find = functools.partial(slots_between, due, seen, since=since)
        self._now = now

    def __getattr__(self, name: str) -> Any:
        """Return what else Celery and others ask a schedule for, such as its present time."""
        return getattr(self._due, name)

    def is_due(self, last_run_at: Moment) -> schedstate:
        """Return whether an unseen slot has come, and the seconds until to ask again."""
        is_due, left = self._due.is_due(last_run_at)
        if is_due and not any(self._find(until=self._now())):
            # A schedule that asks to be called at once would keep its ticks from being published.
            return schedstate(is_due=False, next=left if (left or 0) > 0 else _AGAIN_S)
        return schedstate(is_due, left)


@contextmanager
def due_at_slots(
    entries: Iterable[Any],
    now: Now,
    seen: Mapping[str, Moment] = MappingProxyType({}),
    waiting: Container[str] = (),
) -> Iterator[None]:
    """Make entries due at their slots inside the block; their stored schedules don't change.

    Args:
        entries: The entries.
        now: Returns the present time.
        seen: The moment up to which each entry's slots were seen, by name; else its last run.
        waiting: The names of entries whose ticks are queued.
    """
    own = [(entry, entry.schedule) for entry in entries]
    for entry, due in own:
        until = seen.get(entry.name)
        if is_celerys(due):
            entry.schedule = SlotSchedule(due, beginning_of(entry), now, until)
        elif until and entry.name in waiting:
            entry.schedule = PendingTicksSchedule(due, beginning_of(entry), now, until)
    try:
        yield
    finally:
        for entry, due in own:
            entry.schedule = due


def beginning_of(entry: Any) -> Moment | None:
    """Return the start time of an entry of django-celery-beat, or None without one."""
    start = _of_row(entry, "start_time")
    return aware(start) if start else None


def until_next(entry: Any, slot: Moment) -> float:
    """Return the time from a slot of `entry` to the next one, at most a day, in seconds."""
    until = slot + dt.timedelta(days=1)
    following = slots_between(entry.schedule, slot, until, since=beginning_of(entry))
    return (next(following, until) - slot).total_seconds()


def is_one_off(entry: Any) -> bool:
    """Return whether `entry` is a one-off entry of django-celery-beat."""
    return bool(_of_row(entry, "one_off"))


def _of_row(entry: Any, field: str) -> Any:
    return getattr(getattr(entry, "model", None), field, None)


def rows_of(entry: Any) -> Any:
    """Return the query for the row of an entry of django-celery-beat, or None if it has none."""
    model: Any = getattr(entry, "model", None)
    rows = getattr(type(model), "_default_manager", None)
    return None if rows is None else rows.filter(pk=model.pk)


def store_beginning(entry: Any) -> None:
    """Store since when an entry of django-celery-beat is due, if it has never run.

    Until it has run, its row was last changed when it began. But beat changes the rows of the
    settings' entries at each start, and ticks that wait for the broker would be lost with beat.
    """
    rows = rows_of(entry)
    if rows is not None and not beginning_of(entry):
        rows.filter(last_run_at=None).update(last_run_at=entry.last_run_at)


def aware(moment: Moment) -> Moment:
    """Return `moment` with its zone; without one it is UTC, as schedulers mean it."""
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
