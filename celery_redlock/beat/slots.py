"""The slots of a schedule: its due times, the same on every machine.

A slot depends on the schedule and on time alone. An interval's slots are the multiples of its
length since the epoch, not since beat started; a crontab's are the minutes it names.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import celery
from celery.schedules import BaseSchedule, crontab, schedule, solar

from celery_redlock.redlock.errors import ConfigurationError

Moment = dt.datetime
EPOCH = Moment.fromtimestamp(0, dt.timezone.utc)
INSTANT = dt.timedelta(microseconds=1)
"""Shortest time between two moments."""
_MINUTE = dt.timedelta(minutes=1)
_HOUR = dt.timedelta(hours=1)
_DAY = dt.timedelta(days=1)
_FAR = 41 * 366 * _DAY
"""A crontab's longest pause: 29 February on a Sunday, around the year 2100."""
_FAR_SOLAR = 366 * _DAY
_HOURS_OF_A_DAY = 24
_FIRST_WITH_ONE_ZONE = (5, 7)
"""Version of Celery since which `nowfun` has no influence on a crontab's time zone."""
_LONGEST_SHIFT = 3 * _HOUR
"""No clock change is larger."""


@runtime_checkable
class HasSlots(Protocol):
    """Protocol of a user's schedule class that knows its slots."""

    def redlock_slots(self, after: Moment, until: Moment) -> Iterable[Moment]:
        """Return the slots later than `after` and not later than `until`, in order.

        The result must depend only on the schedule and the two moments, which are in UTC.
        """


def slots_between(
    due: object, after: Moment, until: Moment, since: Moment | None = None
) -> Iterator[Moment]:
    """Yield the slots of a schedule later than `after` and not later than `until`, in UTC.

    Args:
        due: The schedule.
        after: A moment with a time zone.
        until: Likewise.
        since: When its entry begins: nothing is due before, and intervals are counted from it.
            None: the epoch.

    Raises:
        ConfigurationError: The slots of this kind of schedule are unknown.
    """
    slots = _slots_of(due)
    start = (since or EPOCH).astimezone(dt.timezone.utc)
    after = max(after.astimezone(dt.timezone.utc), start - INSTANT)
    until = until.astimezone(dt.timezone.utc)
    for slot in slots(due, after, until, start):
        if after < slot <= until:
            yield slot.astimezone(dt.timezone.utc)


def next_slot(due: object, after: Moment, since: Moment | None = None) -> Moment | None:
    """Return the first slot of a schedule of Celery's own later than `after`, or None for never."""
    # A last run in the year 1 can't be converted to a zone west of UTC.
    after = max(after, EPOCH)
    far = _FAR_SOLAR if isinstance(due, solar) else _FAR
    return next(slots_between(due, after, max(after, since or after) + far, since), None)


def last_slot(
    due: object, after: Moment, until: Moment, since: Moment | None = None
) -> Moment | None:
    """Return the last slot of `slots_between`, or None without one."""
    # From the end: there may be very many.
    for length in (_MINUTE, _HOUR, _DAY, until - after):
        if found := list(slots_between(due, max(after, until - length), until, since)):
            return found[-1]
    return None


def check(due: Any) -> None:
    """Refuse a schedule whose slots are unknown, or that has no slots.

    Raises:
        ConfigurationError: The schedule is refused.
    """
    if _slots_of(due) is _interval_slots and due.run_every < INSTANT:
        raise ConfigurationError(
            f"interval must be positive, got {due.run_every.total_seconds()} s"
        )


def is_clocked(due: object) -> bool:
    """Return whether `due` is django-celery-beat's schedule of one slot."""
    return isinstance(getattr(due, "clocked_time", None), Moment)


def is_celerys(due: object) -> bool:
    """Return whether `due` is an interval, a crontab or solar: the kinds `next_slot` takes."""
    return _known_slots_of(due) in (_interval_slots, _crontab_slots, _solar_slots)


Slots = Callable[[Any, Moment, Moment, Moment], Iterable[Moment]]


def _slots_of(due: object) -> Slots:
    slots = _known_slots_of(due)
    if slots is None:
        kind = f"{type(due).__module__}.{type(due).__qualname__}"
        raise ConfigurationError(
            f"slots of schedule class {kind} are unknown, so replicas can't agree on its ticks; "
            "give the class a method redlock_slots(after, until) that returns its due times"
        )
    return slots


def _known_slots_of(due: object) -> Slots | None:
    if isinstance(due, HasSlots):
        return _own_slots
    if _is_plain(due, crontab):
        return _crontab_slots
    if _is_plain(due, solar):
        return _solar_slots
    if _is_plain(due, schedule):
        return _interval_slots
    if is_clocked(due):
        return _clocked_slots
    if hasattr(getattr(due, "rrule", None), "between"):
        return _rrule_slots
    return None


def _is_plain(due: object, kind: type[BaseSchedule]) -> bool:
    """Return whether `due` is of `kind`, and not of a subclass with other due times."""
    its_class: Any = type(due)
    return isinstance(due, kind) and (
        (its_class.is_due, its_class.remaining_estimate) == (kind.is_due, kind.remaining_estimate)
        # django-celery-beat overrides both for its time zone's sake.
        or its_class.__module__ == "django_celery_beat.tzcrontab"
    )


# ---- one kind each: at least the slots later than `after` and not later than `until`, in order


def _own_slots(due: HasSlots, after: Moment, until: Moment, _: Moment) -> Iterable[Moment]:
    return due.redlock_slots(after, until)


def _rrule_slots(due: Any, after: Moment, until: Moment, _: Moment) -> Iterable[Moment]:
    """Return the slots of RedBeat's rrule."""
    slots: Iterable[Moment] = due.rrule.between(after, until, inc=True)
    return slots


def _clocked_slots(due: Any, *_: Moment) -> Iterable[Moment]:
    """Return the one slot of django-celery-beat's clocked schedule."""
    return [due.clocked_time]


def _interval_slots(due: Any, after: Moment, until: Moment, start: Moment) -> Iterator[Moment]:
    # In whole microseconds: a float might be rounded differently elsewhere.
    every: dt.timedelta = due.run_every
    if every < INSTANT:
        return
    slot = start + (after - start) // every * every
    while slot <= until:
        yield slot
        slot += every


def _solar_slots(due: Any, after: Moment, until: Moment, _: Moment) -> Iterator[Moment]:
    """Yield each day's events, searched from before its midnight.

    The search depends on where it starts, and may miss an event only a moment ahead.
    """
    midnight = _start_of_day(after)
    while midnight <= until:
        event = _event_after(due, midnight - _MINUTE)
        while event and event < midnight + _DAY:
            if event >= midnight:
                yield event.replace(microsecond=0)
            event = _event_after(due, event + _HOUR)
        midnight += _DAY


def _event_after(due: Any, moment: Moment) -> Moment | None:
    """Return the sun's next event; None without one, as in the polar night."""
    how = {"use_center": True} if due.use_center else {}
    try:
        found = getattr(due.cal, due.method)(
            due.ephem.Sun(), start=due.ephem.Date(moment.replace(tzinfo=None)), **how
        )
    except due.ephem.CircumpolarError:
        return None
    event: Moment = found.datetime().replace(tzinfo=dt.timezone.utc)
    return event


# ---- crontab


def _crontab_slots(due: crontab, after: Moment, until: Moment, _: Moment) -> Iterator[Moment]:
    """Yield the minutes that are slots.

    Celery's own arithmetic is not used: around a clock change its answer depends on where it
    starts, and in the hour that comes twice it is always due.
    """
    zone = _zone_of(due)
    is_named = functools.partial(_is_named, due, zone)
    minute = after.replace(second=0, microsecond=0) + _MINUTE
    while minute <= until:
        next_hour = minute.replace(minute=0) + _HOUR
        if not any(_names_day(due, minute + shift) for shift in (-_DAY, 0 * _DAY, _DAY)):
            minute = _start_of_day(minute) + _DAY
        elif not _may_name_hour(due, minute.astimezone(zone)):
            minute = next_hour
        else:
            while minute <= until and minute < next_hour:
                if is_named(minute):
                    yield minute
                minute += _MINUTE


def _zone_of(due: Any) -> dt.tzinfo:
    """Return the time zone of a crontab's minutes, as the installed Celery has it.

    Before Celery 5.7 it is that of `nowfun`, by which an entry has a zone of its own.
    """
    zone: dt.tzinfo = due.tz
    if due.nowfun and celery.VERSION < _FIRST_WITH_ONE_ZONE:
        return due.nowfun().tzinfo or zone
    return zone


def _is_named(due: Any, zone: dt.tzinfo, minute: Moment) -> bool:
    """Return whether a minute, in UTC, is a slot.

    A minute that a clock change leaves out is due as long after the change as it would have been.
    A minute that comes twice is due the first time, or both times if every hour is named.
    """
    local = minute.astimezone(zone)
    offset, before = _offset(local), _offset((minute - _LONGEST_SHIFT).astimezone(zone))
    shift = offset - before
    if _offset((minute - abs(shift)).astimezone(zone)) != before:
        return _names_minute(due, local)
    if shift < 0 * _HOUR:
        return len(due.hour) == _HOURS_OF_A_DAY and _names_minute(due, local)
    return _names_minute(due, local) or _names_minute(due, minute + before)


def _names_minute(due: Any, local: Moment) -> bool:
    return local.minute in due.minute and local.hour in due.hour and _names_day(due, local)


def _names_day(due: Any, local: Moment) -> bool:
    return (
        local.month in due.month_of_year
        and local.day in due.day_of_month
        and local.isoweekday() % 7 in due.day_of_week
    )


def _may_name_hour(due: Any, local: Moment) -> bool:
    return any((local.hour + near) % _HOURS_OF_A_DAY in due.hour for near in range(-3, 3))


def _offset(local: Moment) -> dt.timedelta:
    return local.utcoffset() or 0 * _HOUR


def _start_of_day(moment: Moment) -> Moment:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)
