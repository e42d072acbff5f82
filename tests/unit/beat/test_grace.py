"""How late a tick is still published: by its entry, by the setting, or by its schedule."""

from __future__ import annotations

import datetime as dt
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab, solar

from celery_redlock.beat.grace import Graces, grace_named_by
from celery_redlock.beat.slot_schedule import until_next
from celery_redlock.beat.slots import Moment, slots_between
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.fakes.fake_clock import FakeClock

HEADER = "redlock_beat_misfire_grace_time"
"""As the documentation says."""
DAY = dt.datetime(2026, 1, 5, tzinfo=dt.timezone.utc)  # a Monday
SECOND = dt.timedelta(seconds=1)
app = Celery("app", set_as_current=False)


def entry(due: Any, **headers: Any) -> ScheduleEntry:
    return ScheduleEntry("entry", "task", DAY, schedule=due, options={"headers": headers}, app=app)


def graces(setting: float | None = None) -> Graces:
    return Graces(setting, lambda: 0.0)


def cron(line: str) -> crontab:
    due = crontab.from_string(line)
    due.app = app
    return due


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (1.0, 60.0),
        (60.0, 60.0),
        (1440.0, 60.0),
        (1464.0, 61.0),
        (3600.0, 150.0),
        (86_400.0, 3600.0),
        (7 * 86_400.0, 3600.0),
        (cron("* * * * *"), 60.0),
        (cron("0 * * * *"), 150.0),
        (cron("0 0 * * *"), 3600.0),
        (cron("0 0 * * 1"), 3600.0),
        (cron("0 0,6 * * *"), 900.0),
    ],
    ids=str,
)
def test_a_grace_grows_with_the_time_to_the_next_slot(due: Any, expected: float) -> None:
    one = entry(due)
    slot = next(slots_between(one.schedule, DAY - SECOND, DAY + dt.timedelta(days=8)))
    assert graces().grace(one, until_next(one, slot)) == expected


def test_a_solar_entry_has_a_grace_of_its_kind() -> None:
    one = entry(solar("sunrise", 52.5, 13.4, app=app))
    [slot] = slots_between(one.schedule, DAY, DAY + dt.timedelta(days=1))
    assert 3590 <= graces().grace(one, until_next(one, slot)) <= 3600


def test_the_setting_overrides_the_schedule_and_the_header_both() -> None:
    assert graces(90.0).grace(entry(1.0), 1.0) == 90.0
    assert graces(90.0).grace(entry(1.0, **{HEADER: 7200}), 1.0) == 7200.0
    assert graces().grace(entry(86_400.0, **{HEADER: 5}), 86_400.0) == 5.0


def oldest(one: ScheduleEntry, after: Moment | None, now: Moment, busy: float = 0.0) -> list[str]:
    """Return the slots of the last hours that are in time."""
    begin = graces().oldest(one, after, now, busy)
    return [f"{slot:%H:%M}" for slot in slots_between(one.schedule, begin, now)]


@pytest.mark.parametrize(
    ("line", "late_s", "busy", "expected"),
    [
        ("0 3 * * *", 61, 0.0, ["03:00"]),
        ("0 3 * * *", 3599, 0.0, ["03:00"]),
        ("0 3 * * *", 3601, 0.0, []),
        ("0 3 * * *", 3601, 2.0, ["03:00"]),
        # The first of two is superseded.
        ("0,5 3 * * *", 62, 0.0, []),
        ("0,5 3 * * *", 3000, 0.0, ["03:05"]),
        ("0,5 3 * * *", 3000, 2700.0, ["03:05"]),
        ("* * * * *", 90, 0.0, ["03:01"]),
        ("* * * * *", 90, 30.5, ["03:00", "03:01"]),
    ],
)
def test_the_slots_in_time_are_the_last_ones(
    line: str, late_s: int, busy: float, expected: list[str]
) -> None:
    now = DAY + 3 * dt.timedelta(hours=1) + late_s * SECOND
    assert oldest(entry(cron(line)), DAY, now, busy) == expected


def test_slots_that_were_seen_or_never_due_need_no_grace() -> None:
    now = DAY + 3.5 * dt.timedelta(hours=1)
    one = entry(cron("0 3 * * *"))
    assert oldest(one, None, now) == []  # it never ran: it has missed nothing
    assert oldest(one, now - 20 * dt.timedelta(minutes=1), now) == []


@pytest.mark.parametrize("line", ["*/7 3,4 * * *", "1,2,50 */5 * * *", "0,59 0,23 * * *"])
def test_the_slots_in_time_are_those_whose_own_graces_last(line: str) -> None:
    one = entry(cron(line))
    ends = {
        slot: slot + graces().grace(one, until_next(one, slot)) * SECOND
        for slot in slots_between(one.schedule, DAY, DAY + dt.timedelta(days=1))
    }
    for minute in range(0, 1440, 17):
        now = DAY + minute * dt.timedelta(minutes=1) + SECOND
        expected = [slot for slot, end in ends.items() if slot <= now < end]
        begin = graces().oldest(one, DAY, now, 0.0)
        assert list(slots_between(one.schedule, max(DAY, begin), now)) == expected, now


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"headers": {HEADER: "3600"}}, "write it without quotes"),
        ({"headers": {HEADER: True}}, "not a number"),
        ({"headers": {HEADER: 0.5}}, "at least 1"),
        ({"headers": {HEADER: "3600"}}, f"{HEADER} = '3600'"),
        (
            {HEADER: 3600},
            (
                f"{HEADER} = 3600 is not among the entry's headers; "
                f'write {{"headers": {{"{HEADER}": 3600}}}}$'
            ),
        ),
    ],
)
def test_a_grace_that_is_not_valid_is_refused(options: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        grace_named_by(options)


def test_no_slot_before_an_entrys_beginning_is_in_time() -> None:
    """As django-celery-beat knows it, by the row's start time."""
    now = DAY + 3.5 * dt.timedelta(hours=1)
    one: Any = entry(cron("0 3 * * *"))
    assert oldest(one, DAY, now) == ["03:00"]
    one.model = SimpleNamespace(start_time=now - dt.timedelta(minutes=10))
    assert oldest(one, DAY, now) == []


@pytest.mark.parametrize("options", [None, {}, {"headers": None}, {"headers": {HEADER: None}}])
def test_an_entry_need_not_name_a_grace(options: Any) -> None:
    assert grace_named_by(options) is None


def test_a_row_whose_grace_is_not_valid_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = SimpleNamespace(name="row", options={"headers": {HEADER: "soon"}})
    clock = FakeClock()
    all_of_them = Graces(90.0, clock.now)
    assert [all_of_them.grace(row, 1.0), all_of_them.grace(row, 1.0)] == [90.0, 90.0]
    other = SimpleNamespace(name="other", options={"headers": {HEADER: "soon"}})
    all_of_them.grace(other, 1.0)
    counts = []
    for seconds in (59, 1):
        clock.move(seconds)
        all_of_them.grace(row, 1.0)
        counts.append(len(caplog.records))
    assert counts == [2, 3]
    told = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    said = f"error={HEADER} = 'soon'"
    assert [line.partition(said)[:2] for line in told] == [
        (f"grace time of entry ignored entry={name} ", said) for name in ("row", "other", "row")
    ]
