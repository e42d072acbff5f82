"""A schedule's slots are the same for whoever asks, whenever, from wherever."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import celery
import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule, solar
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.tzcrontab import TzAwareCrontab
from hypothesis import assume, given
from hypothesis import strategies as st
from redbeat.schedules import rrule

from celery_redlock.beat.slots import (
    EPOCH,
    Moment,
    check,
    is_celerys,
    last_slot,
    next_slot,
    slots_between,
)
from celery_redlock.redlock.errors import ConfigurationError

UTC = dt.timezone.utc
SECOND = dt.timedelta(seconds=1)
MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)

# A zone, and the midnight in UTC before its clock changes.
CHANGES = {
    "forward in Berlin": ("Europe/Berlin", Moment(2026, 3, 29, tzinfo=UTC)),
    "back in Berlin": ("Europe/Berlin", Moment(2026, 10, 25, tzinfo=UTC)),
    # From an offset of none.
    "forward in London": ("Europe/London", Moment(2026, 3, 29, tzinfo=UTC)),
    "back in London": ("Europe/London", Moment(2026, 10, 25, tzinfo=UTC)),
    "forward in New York": ("America/New_York", Moment(2026, 3, 8, tzinfo=UTC)),
    "back in New York": ("America/New_York", Moment(2026, 11, 1, tzinfo=UTC)),
    # By half an hour.
    "back on Lord Howe": ("Australia/Lord_Howe", Moment(2026, 4, 4, tzinfo=UTC)),
    "forward on Lord Howe": ("Australia/Lord_Howe", Moment(2026, 10, 3, tzinfo=UTC)),
    # From 23:00, so that the day has no last hour.
    "forward in Nuuk": ("America/Nuuk", Moment(2026, 3, 28, tzinfo=UTC)),
    # At midnight.
    "back in Beirut": ("Asia/Beirut", Moment(2026, 10, 24, tzinfo=UTC)),
}


@pytest.fixture(autouse=True, scope="module")
def _in_a_zone_of_its_own() -> Iterator[None]:
    """Let this host be in a time zone that no schedule is in: it has no influence."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        yield
    time.tzset()


def app_in(zone: str) -> Celery:
    app = Celery("slots", set_as_current=False)
    app.conf.update(timezone=zone)
    return app


def at(due: Any, zone: str = "UTC") -> Any:
    """Return the schedule as an entry of an app in this time zone has it."""
    due.app = app_in(zone)
    return due


def cron(line: str, zone: str = "UTC") -> Any:
    return at(crontab.from_string(line), zone)


def utc(text: str) -> Moment:
    return Moment.fromisoformat(text).replace(tzinfo=UTC)


def local(slots: Iterable[Moment], zone: str) -> list[str]:
    return [slot.astimezone(ZoneInfo(zone)).isoformat(" ", "minutes") for slot in slots]


def shown(slots: Iterable[Moment]) -> list[str]:
    return [slot.strftime("%Y-%m-%d %H:%M") for slot in slots]


# --- intervals ------------------------------------------------------------------------------------


def test_an_intervals_slots_are_the_multiples_since_the_epoch() -> None:
    hours = at(schedule(3 * HOUR))
    slots = list(slots_between(hours, utc("2026-11-20 04:59"), utc("2026-11-20 12:00")))
    assert shown(slots) == ["2026-11-20 06:00", "2026-11-20 09:00", "2026-11-20 12:00"]
    assert all((slot - EPOCH) % (3 * HOUR) == dt.timedelta() for slot in slots)


def test_a_slot_belongs_to_the_window_that_it_ends() -> None:
    minutes = at(schedule(60))
    begin = utc("2026-11-20 12:00")
    assert list(slots_between(minutes, begin, begin + MINUTE)) == [begin + MINUTE]
    assert list(slots_between(minutes, begin, begin)) == []


def test_intervals_of_fractions_of_a_second_are_exact() -> None:
    tenths = at(schedule(0.1))
    begin = utc("2026-11-20 12:00")
    slots = list(slots_between(tenths, begin, begin + HOUR))
    assert len(slots) == 36_000
    assert {slot.microsecond % 100_000 for slot in slots} == {0}


def test_an_entry_that_begins_at_a_time_is_counted_from_then() -> None:
    days = at(schedule(DAY))
    since = Moment.fromisoformat("2026-11-20 04:30+01:00")
    slots = slots_between(days, since - 9 * DAY, since + 2 * DAY, since)
    assert shown(slots) == ["2026-11-20 03:30", "2026-11-21 03:30", "2026-11-22 03:30"]


def test_nothing_is_due_before_an_entry_begins() -> None:
    since = utc("2026-11-20 04:30")
    slots = slots_between(cron("15,30,45 * * * *"), since - DAY, since + HOUR / 2, since)
    assert shown(slots) == ["2026-11-20 04:30", "2026-11-20 04:45"]


@pytest.mark.parametrize("every", [7 * SECOND, 7 * MINUTE, 7 * HOUR, 7 * DAY, 49 * DAY, 70 * DAY])
def test_the_last_slot_is_found_however_long_ago_it_was(every: dt.timedelta) -> None:
    until = utc("2026-11-20 12:34")
    window = at(schedule(every)), until - 60 * DAY, until
    assert last_slot(*window) == [None, *slots_between(*window)][-1]


def test_the_last_slot_is_looked_for_in_the_last_minute_first() -> None:
    class Asked(Odd):
        def redlock_slots(self, after: Moment, until: Moment) -> list[Moment]:
            asked.append(until - after)
            return [until]

    asked: list[dt.timedelta] = []
    assert last_slot(at(Asked()), EPOCH, EPOCH + DAY) == EPOCH + DAY
    assert asked == [MINUTE]


def test_the_last_slot_is_not_before_an_entry_begins() -> None:
    since = utc("2026-11-20 12:34")
    assert last_slot(at(schedule(HOUR)), EPOCH, since + MINUTE, since) == since
    assert last_slot(at(schedule(HOUR)), EPOCH, since - MINUTE, since) is None
    assert last_slot(at(schedule(HOUR)), since, since + MINUTE, since) is None


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (None, "2026-11-20 13:00"),
        ("1970-01-01 00:30", "2026-11-20 12:30"),
        ("2076-11-20 12:10", "2076-11-20 12:10"),
    ],
)
def test_the_next_slot_is_found_however_far_off_the_beginning(
    since: str | None, expected: str
) -> None:
    begins = utc(since) if since else None
    assert next_slot(at(schedule(HOUR)), utc("2026-11-20 12:00"), begins) == utc(expected)


# --- crontab --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7,9 12 * * *", ["2026-11-20 12:07", "2026-11-20 12:09", "2026-11-21 12:07"]),
        ("*/30 * * * *", ["2026-11-20 12:30", "2026-11-20 13:00", "2026-11-20 13:30"]),
        ("0 */8 * * *", ["2026-11-20 16:00", "2026-11-21 00:00", "2026-11-21 08:00"]),
        ("0 4 1,15 * *", ["2026-12-01 04:00", "2026-12-15 04:00", "2027-01-01 04:00"]),
        ("0 4 31 * *", ["2026-12-31 04:00", "2027-01-31 04:00", "2027-03-31 04:00"]),
        ("0 4 1 */6 *", ["2027-01-01 04:00", "2027-07-01 04:00", "2028-01-01 04:00"]),
        ("0 4 * * sun", ["2026-11-22 04:00", "2026-11-29 04:00", "2026-12-06 04:00"]),
        ("0 4 13 * 5", ["2027-08-13 04:00", "2028-10-13 04:00", "2029-04-13 04:00"]),
        ("0 4 29 2 *", ["2028-02-29 04:00", "2032-02-29 04:00", "2036-02-29 04:00"]),
        ("0 4 29 2 0", ["2032-02-29 04:00", "2060-02-29 04:00", "2088-02-29 04:00"]),
    ],
)
def test_every_field_of_a_crontab_counts(line: str, expected: list[str]) -> None:
    after, slots = utc("2026-11-20 12:00"), []
    for _ in expected:
        after = next_slot(cron(line), after) or EPOCH
        slots.append(after)
    assert shown(slots) == expected


def test_the_longest_pause_of_a_crontab_is_not_never() -> None:
    slot = next_slot(cron("0 4 29 2 0"), utc("2088-03-01 00:00"))
    assert slot == utc("2128-02-29 04:00")


def test_a_crontab_is_in_its_apps_time_zone() -> None:
    daily = cron("30 4 * * *", "Asia/Kolkata")
    assert shown(slots_between(daily, utc("2026-11-20 00:00"), utc("2026-11-21 00:00"))) == [
        "2026-11-20 23:00"
    ]


@pytest.mark.parametrize(
    ("line", "zone", "expected"),
    [
        ("30 4 1 12 *", "Asia/Kolkata", "2026-11-30 23:00"),
        ("30 22 30 11 mon", "America/New_York", "2026-12-01 03:30"),
        ("0 3 1 12 *", "Pacific/Kiritimati", "2026-11-30 13:00"),
    ],
)
def test_a_day_is_that_of_the_time_zone(line: str, zone: str, expected: str) -> None:
    slots = slots_between(cron(line, zone), utc("2026-11-20 15:00"), utc("2026-12-20 00:00"))
    assert shown(slots) == [expected]


def test_a_crontab_of_django_celery_beat_is_in_its_own_time_zone() -> None:
    daily = at(TzAwareCrontab("30", "4", tz=ZoneInfo("Asia/Kolkata")), "Europe/Berlin")
    slot = next_slot(daily, utc("2026-11-20 00:00"))
    assert slot == utc("2026-11-20 23:00")


minutes = st.one_of(
    st.just("*"),
    st.sampled_from(["*/7", "*/15", "10-20", "0", "59"]),
    st.sets(st.integers(0, 59), min_size=1, max_size=3).map(lambda all_: ",".join(map(str, all_))),
)
hours = st.one_of(
    st.just("*"),
    st.sampled_from(["*/3", "1-4", "0", "2", "23"]),
    st.sets(st.integers(0, 23), min_size=1, max_size=3).map(lambda all_: ",".join(map(str, all_))),
)
lines = st.builds(
    " ".join,
    st.tuples(
        minutes,
        hours,
        st.sampled_from(["*", "*", "1", "28-31", "*/2", "25", "29"]),
        st.sampled_from(["*", "*", "3,10,11", "2", "*/5"]),
        st.sampled_from(["*", "*", "0", "1-5"]),
    ),
)
in_these_years = st.datetimes(dt.datetime(2020, 1, 1), dt.datetime(2032, 1, 1)).map(  # noqa: DTZ001
    lambda naive: naive.replace(tzinfo=UTC)
)


@given(lines, in_these_years)
def test_where_no_clock_changes_celery_says_the_same(line: str, after: Moment) -> None:
    due = cron(line)
    due.nowfun = lambda: after
    assert next_slot(due, after) == after + due.remaining_estimate(after)


@pytest.mark.parametrize(
    ("version", "nowfun_in", "slot"),
    [
        ((5, 6, 3, "", ""), "America/New_York", "2026-07-01 13:00"),
        ((5, 7, 0, "", ""), "America/New_York", "2026-07-01 09:00"),
        ((5, 6, 3, "", ""), "", "2026-07-01 09:00"),
        ((5, 6, 3, "", ""), None, "2026-07-01 09:00"),
    ],
)
def test_nowfun_has_the_influence_on_the_zone_that_it_has_in_celery(
    version: tuple[Any, ...], nowfun_in: str | None, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(celery, "VERSION", version)
    zone = ZoneInfo(nowfun_in) if nowfun_in else None
    nowfun = None if nowfun_in is None else lambda: Moment.now(zone)
    due = at(crontab(hour="9", minute="0", nowfun=nowfun))
    assert next_slot(due, utc("2026-07-01 08:00")) == utc(slot)


def test_a_crontab_of_a_zone_of_its_own_is_due_when_celery_says_so() -> None:
    after, zone = utc("2026-07-01 08:00"), ZoneInfo("America/New_York")
    due = at(crontab(hour="9", minute="0", nowfun=lambda: after.astimezone(zone)))
    # Celery's estimate starts from the last run, which is a moment of `nowfun`.
    assert next_slot(due, after) == after + due.remaining_estimate(due.now())


# --- clock changes --------------------------------------------------------------------------------


def test_what_a_clock_change_leaves_out_is_due_as_long_after_it() -> None:
    zone, midnight = CHANGES["forward in Berlin"]
    slots = slots_between(cron("30 1,2 * * *", zone), midnight - DAY / 2, midnight + DAY / 2)
    assert local(slots, zone) == ["2026-03-29 01:30+01:00", "2026-03-29 03:30+02:00"]
    zone, midnight = CHANGES["forward in Nuuk"]
    slots = slots_between(cron("30 23 * * *", zone), midnight + HOUR * 12, midnight + 3 * DAY)
    assert local(slots, zone) == ["2026-03-29 00:30-01:00", "2026-03-29 23:30-01:00"]


def test_what_a_clock_change_repeats_is_due_the_first_time() -> None:
    zone, midnight = CHANGES["back in Berlin"]
    slots = slots_between(cron("*/30 2 * * *", zone), midnight - DAY / 2, midnight + DAY / 2)
    assert local(slots, zone) == ["2026-10-25 02:00+02:00", "2026-10-25 02:30+02:00"]


@pytest.mark.parametrize("change", CHANGES)
def test_with_every_hour_named_a_clock_change_changes_nothing(change: str) -> None:
    zone, midnight = CHANGES[change]
    slots = list(slots_between(cron("*/30 * * * *", zone), midnight - DAY, midnight + 2 * DAY))
    assert slots == [midnight - DAY + n * HOUR / 2 for n in range(1, 3 * 48 + 1)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "line", ["*/10 * * * *", "30 2 * * *", "0,30 0-3,23 * * *", "15 2 25,29 * *", "45 1 * * sun"]
)
def test_around_a_clock_change_slots_do_not_depend_on_the_start(change: str, line: str) -> None:
    zone, midnight = CHANGES[change]
    due, end = cron(line, zone), midnight + 2 * DAY
    everything = list(slots_between(due, midnight - DAY, end))
    assert everything == sorted(set(everything))
    for start in range(-24 * 60, 48 * 60, 97):
        after = midnight + start * MINUTE + 5 * SECOND
        rest = [slot for slot in everything if slot > after]
        assert list(islice(slots_between(due, after, end), 10)) == rest[:10]
        if rest:
            assert next_slot(due, after) == rest[0]


@pytest.mark.parametrize("change", CHANGES)
def test_a_daily_entry_is_due_once_on_days_of_clock_changes(change: str) -> None:
    zone, midnight = CHANGES[change]
    for hour in range(24):
        daily = cron(f"30 {hour} * * *", zone)
        slots = list(slots_between(daily, midnight - 3 * DAY, midnight + 4 * DAY))
        assert len(slots) >= 6
        assert all(22 * HOUR < b - a < 26 * HOUR for a, b in pairwise(slots))


# --- solar ----------------------------------------------------------------------------------------


@given(
    st.sampled_from(["sunrise", "sunset", "solar_noon", "dawn_civil", "dusk_astronomical"]),
    st.floats(-45, 45),
    st.floats(-180, 180),
    in_these_years,
)
def test_solar_slots_are_celerys_events_to_the_second(
    event: Any, lat: float, lon: float, after: Moment
) -> None:
    due = at(solar(event, lat, lon))
    slot = next_slot(due, after)
    assert slot
    due.nowfun = lambda: after
    expected = after + due.remaining_estimate(after)
    # Celery's search for what is a moment ahead finds this event or the next.
    assume(min(slot - after, expected - after) > 5 * SECOND)
    assert abs(slot - expected) < 2 * SECOND


def test_two_sunrises_in_one_utc_day_are_two_slots() -> None:
    found = []
    for lon in range(-180, 180, 3):
        due = at(solar("sunrise", 64, lon))
        slots = list(slots_between(due, utc("2026-03-18 00:00"), utc("2026-03-28 00:00")))
        assert all(b - a < 25 * HOUR for a, b in pairwise(slots)), lon
        days = [slot.date() for slot in slots]
        found += [day for day in days if days.count(day) == 2]
    assert found


def test_in_the_polar_night_nothing_is_due() -> None:
    sunrise = at(solar("sunrise", 78.2, 15.6))
    assert list(slots_between(sunrise, utc("2026-11-20 00:00"), utc("2027-01-20 00:00"))) == []
    slot = next_slot(sunrise, utc("2026-11-20 00:00"))
    assert slot
    assert slot.date().isoformat().startswith("2027-02-1")


@pytest.mark.parametrize(("kind", "how"), [("sunrise", {}), ("dawn_civil", {"use_center": True})])
def test_each_of_the_suns_events_is_a_slot_once(kind: Any, how: dict[str, bool]) -> None:
    def next_rising(_: Any, start: Any, **given: bool) -> Any:
        assert given == how
        starts.append(start.datetime())
        found = [event for event in events if event.replace(tzinfo=None) > start.datetime()]
        if not found:
            raise due.ephem.CircumpolarError
        return SimpleNamespace(datetime=lambda: found[0].replace(tzinfo=None))

    due = at(solar(kind, 50, 10))
    due.cal = SimpleNamespace(next_rising=next_rising)
    midnight = utc("2026-11-20 00:00")
    starts: list[Moment] = []
    events = [
        midnight - SECOND,
        midnight + 22 * HOUR,
        midnight + DAY,
        midnight + DAY + 6.5 * HOUR + dt.timedelta(microseconds=700_000),
        midnight + 2 * DAY,
    ]
    slots = list(slots_between(due, midnight - HOUR + 1.5 * SECOND, events[-1]))
    assert slots == [event.replace(microsecond=0) for event in events]
    # The search for an event begins at the same moment wherever the window begins.
    first = (midnight - DAY - MINUTE).replace(tzinfo=None)
    assert abs(starts[0] - first) < SECOND / 100


def test_for_the_suns_next_event_a_year_is_searched() -> None:
    def none(*_: Any, **__: Any) -> None:
        searched.append(1)
        raise sunrise.ephem.CircumpolarError

    searched: list[int] = []
    sunrise = at(solar("sunrise", 78.2, 15.6))
    sunrise.cal = SimpleNamespace(next_rising=none)
    assert next_slot(sunrise, utc("2026-11-20 00:00")) is None
    assert len(searched) == 367


# --- other kinds ----------------------------------------------------------------------------------


def test_clocked_has_one_slot() -> None:
    moment = Moment.fromisoformat("2026-11-20 12:00+01:00")
    due = at(clocked(moment))
    assert list(slots_between(due, moment - SECOND, moment)) == [moment]
    assert list(slots_between(due, moment, moment + DAY)) == []
    assert list(slots_between(due, moment - DAY, moment - SECOND)) == []


def test_redbeats_rrule_has_those_that_it_names() -> None:
    due = at(rrule("HOURLY", dtstart=utc("2026-11-20 12:30"), interval=2, count=3))
    begin = utc("2026-11-20 12:30")
    assert shown(slots_between(due, begin, begin + DAY)) == ["2026-11-20 14:30", "2026-11-20 16:30"]
    assert shown(slots_between(due, begin, begin + 2 * HOUR)) == ["2026-11-20 14:30"]


class Odd(BaseSchedule):
    """A class of the user's own."""

    def is_due(self, last_run_at: Moment) -> Any:
        return False, 1.0


class Named(Odd):
    def redlock_slots(self, after: Moment, until: Moment) -> Iterator[Moment]:
        berlin = ZoneInfo("Europe/Berlin")
        yield from (EPOCH.astimezone(berlin) + n * HOUR for n in range(-1, 5))


class NotOnHolidays(crontab):
    def is_due(self, last_run_at: Moment) -> Any:
        return super().is_due(last_run_at)


class Labelled(crontab):
    label = "due when every crontab is"


def test_a_class_of_the_users_own_says_when_its_slots_are() -> None:
    slots = list(slots_between(at(Named()), EPOCH, EPOCH + 2 * HOUR))
    assert slots == [EPOCH + HOUR, EPOCH + 2 * HOUR]
    assert {slot.tzinfo for slot in slots} == {UTC}


@pytest.mark.parametrize("since", [None, Moment.fromisoformat("2026-11-20 04:30+01:00")])
def test_a_class_of_the_users_own_is_asked_in_utc(since: Moment | None) -> None:
    class Asked(Odd):
        def redlock_slots(self, after: Moment, until: Moment) -> list[Moment]:
            asked.extend([after.utcoffset(), until.utcoffset()])
            return [until.astimezone(dt.timezone(HOUR))]

    asked: list[dt.timedelta | None] = []
    until = Moment.fromisoformat("2026-11-20 12:30+01:00")
    [slot] = slots_between(at(Asked()), until - 9 * HOUR, until, since)
    assert [*asked, slot.utcoffset()] == [dt.timedelta()] * 3


@pytest.mark.parametrize(
    "due", [Odd(), NotOnHolidays("0", "4"), None], ids=["kind", "subclass", "none"]
)
def test_a_class_whose_slots_are_not_known_is_refused(due: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"redlock_slots\(after, until\)") as refused:
        check(due)
    assert f" {type(due).__module__}.{type(due).__qualname__} " in str(refused.value)
    with pytest.raises(ConfigurationError):
        list(slots_between(due, EPOCH, EPOCH + DAY))
    assert not is_celerys(due)


def test_a_subclass_due_as_its_base_is_not_the_users_own() -> None:
    due = at(Labelled("0", "4"))
    assert next_slot(due, utc("2026-11-20 00:00")) == utc("2026-11-20 04:00")


@pytest.mark.parametrize(
    ("due", "is_one_of_celerys"),
    [
        (schedule(dt.timedelta(microseconds=1)), True),
        (Labelled("0", "4"), True),
        (solar("sunset", 50, 10), True),
        (Named(), False),
        (clocked(EPOCH), False),
    ],
)
def test_a_schedule_with_slots_is_accepted(due: Any, is_one_of_celerys: bool) -> None:
    check(at(due))
    assert is_celerys(due) == is_one_of_celerys


def test_the_shortest_interval_is_a_microsecond() -> None:
    shortest = at(schedule(dt.timedelta(microseconds=1)))
    end = EPOCH + dt.timedelta(microseconds=3)
    assert len(list(slots_between(shortest, EPOCH, end))) == 3


@pytest.mark.parametrize("every", [0, -5])
def test_an_interval_that_never_ends_is_refused(every: int) -> None:
    with pytest.raises(ConfigurationError, match="interval must be positive, got"):
        check(at(schedule(every)))
    assert list(slots_between(at(schedule(every)), EPOCH, EPOCH + DAY)) == []


def test_the_year_1_is_as_good_as_the_epoch() -> None:
    first = Moment.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")) + HOUR
    assert next_slot(cron("0 4 * * *"), first) == utc("1970-01-01 04:00")


# --- all kinds ------------------------------------------------------------------------------------

zones = st.sampled_from(["UTC", *{zone for zone, _ in CHANGES.values()}])
schedules = st.one_of(
    st.builds(cron, lines, zones),
    st.builds(at, st.builds(schedule, st.integers(5, 90_000)), zones),
    st.builds(at, st.builds(solar, st.just("sunset"), st.floats(-89, 89), st.floats(-180, 180))),
    st.builds(at, st.builds(clocked, in_these_years)),
)
near_a_change = st.builds(
    lambda change, offset: CHANGES[change][1] + offset,
    st.sampled_from(sorted(CHANGES)),
    st.timedeltas(-2 * DAY, 3 * DAY),
)
lengths = st.timedeltas(dt.timedelta(), DAY)


@given(schedules, st.one_of(near_a_change, in_these_years), lengths, lengths)
def test_the_slots_of_two_windows_are_those_of_both_together(
    due: Any, begin: Moment, first: dt.timedelta, second: dt.timedelta
) -> None:
    middle, end = begin + first, begin + first + second
    together = list(slots_between(due, begin, end))
    assert [*slots_between(due, begin, middle), *slots_between(due, middle, end)] == together
    assert together == sorted(set(together))
    assert all(begin < slot <= end for slot in together)
