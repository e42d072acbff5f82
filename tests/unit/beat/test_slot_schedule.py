"""An entry is due at its slots, however long after it ran last they are."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule

from celery_redlock.beat.slot_schedule import (
    PendingTicksSchedule,
    SlotSchedule,
    beginning_of,
    due_at_slots,
    is_one_off,
    store_beginning,
    until_next,
)
from celery_redlock.beat.slots import EPOCH, Moment, slots_between

UTC = dt.timezone.utc
NOON = Moment(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)


def due(what: Any, now: Moment, since: Moment | None = None) -> SlotSchedule:
    what.app = Celery("due", set_as_current=False)
    return SlotSchedule(what, since, lambda: now)


def test_an_hourly_entry_begun_at_twenty_past_is_due_at_the_hour() -> None:
    begun = NOON - 40 * MINUTE
    assert due(schedule(HOUR), NOON - MINUTE).is_due(begun) == (False, 60.0)
    assert due(schedule(HOUR), NOON).is_due(begun) == (True, 3600.0)


def test_one_that_was_late_is_not_late_again() -> None:
    assert due(schedule(HOUR), NOON + 10 * MINUTE).is_due(NOON - HOUR) == (True, 3000.0)
    assert due(schedule(HOUR), NOON + 10 * MINUTE).is_due(NOON + 10 * MINUTE) == (False, 3000.0)


def test_in_a_repeated_hour_a_crontab_is_due_no_more_often() -> None:
    every_minute = crontab()
    every_minute.app = Celery("due", set_as_current=False)
    every_minute.app.conf.update(timezone="Europe/Berlin")
    change = Moment(2026, 10, 25, 1, tzinfo=UTC)
    last_run = change + 10 * MINUTE
    now = last_run + MINUTE / 2
    assert SlotSchedule(every_minute, None, lambda: now).is_due(last_run) == (False, 30.0)


def test_what_never_comes_is_not_due() -> None:
    rare = due(crontab("0", "4", day_of_month="29", month_of_year="2"), NOON)
    assert rare.remaining_estimate(NOON) == Moment(2028, 2, 29, 4, tzinfo=UTC) - NOON
    never = due(schedule(0), NOON)
    assert never.remaining_estimate(NOON) is None
    is_due, left = never.is_due(NOON)
    assert not is_due
    assert left > 86_400


def test_a_moment_without_a_zone_is_utc() -> None:
    assert due(schedule(HOUR), NOON).is_due(NOON.replace(tzinfo=None) - HOUR) == (True, 3600.0)


def test_a_last_run_to_come_has_seen_the_slots_until_then() -> None:
    assert due(schedule(HOUR), NOON - MINUTE).is_due(NOON + MINUTE) == (False, 3660.0)


def test_before_its_beginning_an_entry_is_not_due() -> None:
    late = due(schedule(HOUR), NOON, since=NOON + MINUTE)
    assert late.is_due(EPOCH) == (False, 60.0)


def test_entries_are_due_by_slots_inside_only() -> None:
    hourly, other = schedule(HOUR), SimpleNamespace()
    app: Any = Celery("due", set_as_current=False)
    app.now = lambda: NOON
    entry: Any = ScheduleEntry("hourly", schedule=hourly, last_run_at=NOON - 40 * MINUTE, app=app)
    odd = SimpleNamespace(name="odd", schedule=other)
    without = SimpleNamespace(name="without", schedule=None)
    with due_at_slots([entry, odd, without], lambda: NOON):
        assert entry.is_due() == (True, 3600.0)
        assert odd.schedule is other
        window = NOON - 2 * HOUR, NOON
        assert list(slots_between(entry.schedule, *window)) == [NOON - HOUR, NOON]
        assert (entry.schedule.tz, entry.schedule.now()) == (hourly.tz, app.now())
    assert entry.schedule is hourly
    with due_at_slots([entry], lambda: NOON, seen={"hourly": NOON}):
        assert entry.is_due() == (False, 3600.0)
    with suppress(KeyError), due_at_slots([entry], lambda: NOON):
        raise KeyError
    assert entry.schedule is hourly


class Always:
    """A schedule of the user's own that is due whenever it is asked."""

    def __init__(self, slot: Moment, left: float | None) -> None:
        self.slot = slot
        self.left = left

    def redlock_slots(self, after: Moment, until: Moment) -> list[Moment]:
        return [self.slot]

    def is_due(self, last_run_at: Moment) -> tuple[bool, float | None]:
        assert last_run_at == EPOCH
        return True, self.left


@pytest.mark.parametrize(
    ("left", "asked_in"), [(60.0, 60.0), (0.5, 0.5), (0.0, 1.0), (-5.0, 1.0), (None, 1.0)]
)
def test_while_its_tick_waits_an_entry_is_due_at_later_slots(
    left: float | None, asked_in: float
) -> None:
    always = Always(NOON, left)
    assert PendingTicksSchedule(always, None, lambda: NOON, seen=NOON - MINUTE).is_due(EPOCH) == (
        True,
        left,
    )
    waits = PendingTicksSchedule(always, None, lambda: NOON + HOUR, seen=NOON)
    assert waits.is_due(EPOCH) == (False, asked_in)
    not_begun = PendingTicksSchedule(always, NOON + MINUTE, lambda: NOON + HOUR, NOON - MINUTE)
    assert not_begun.is_due(EPOCH) == (False, asked_in)
    assert not_begun.left == left


def test_only_entries_of_django_celery_beat_have_a_beginning() -> None:
    assert beginning_of(ScheduleEntry("entry", last_run_at=EPOCH)) is None
    assert not is_one_off(ScheduleEntry("entry", last_run_at=EPOCH))
    assert is_one_off(SimpleNamespace(model=SimpleNamespace(one_off=True)))
    assert beginning_of(SimpleNamespace(model=SimpleNamespace(start_time=None))) is None
    naive, local = NOON.replace(tzinfo=None), NOON.astimezone(dt.timezone(HOUR))
    for start in (naive, local):
        assert beginning_of(SimpleNamespace(model=SimpleNamespace(start_time=start))) == NOON


def test_the_time_to_the_next_slot_is_counted_from_the_beginning() -> None:
    row: Any = SimpleNamespace(start_time=NOON + 10 * MINUTE)
    entry = SimpleNamespace(schedule=schedule(HOUR), model=row)
    assert until_next(entry, row.start_time) == 3600.0
    replaced = SlotSchedule(entry.schedule, row.start_time, Moment.now)
    assert list(slots_between(replaced, NOON, NOON + HOUR)) == [row.start_time]


def test_a_next_slot_further_off_than_a_day_is_a_day_off() -> None:
    assert until_next(SimpleNamespace(schedule=schedule(7 * 24 * HOUR)), EPOCH) == 86_400.0


class Stored(SimpleNamespace):
    """A row, and what its manager is asked to change."""

    changes: ClassVar[list[dict[str, Any]]] = []
    _default_manager: ClassVar[Any]

    @classmethod
    def filter(cls, **conditions: Any) -> type[Stored]:
        cls.changes.append(conditions)
        return cls

    @classmethod
    def update(cls, **fields: Any) -> None:
        cls.changes.append(fields)


Stored._default_manager = Stored


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (None, []),
        (SimpleNamespace(pk=7, start_time=None), []),  # a database's without Django
        (Stored(pk=7, start_time=NOON), [{"pk": 7}]),  # it is due since then
        (Stored(pk=7, start_time=None), [{"pk": 7}, {"last_run_at": None}, {"last_run_at": NOON}]),
    ],
)
def test_the_beginning_of_a_row_that_has_none_is_stored(model: Any, changes: list[Any]) -> None:
    Stored.changes.clear()
    store_beginning(SimpleNamespace(last_run_at=NOON, **({"model": model} if model else {})))
    assert Stored.changes == changes
