"""Entries in force: when one begins, and what was seen by a clock that was ahead."""

from __future__ import annotations

import datetime as dt
import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from celery_redlock.beat.in_force import InForce, Listed, ahead_of, begin_at, last_run_of
from celery_redlock.beat.slots import EPOCH, Moment


def at(seconds: float | None) -> Moment | None:
    return None if seconds is None else EPOCH + dt.timedelta(seconds=seconds)


def entry(last_run: float | None, every: float = 1.0, start: float | None = None) -> Any:
    due = schedule(every, app=Celery("app", set_as_current=False))
    row = SimpleNamespace(start_time=at(start))
    return SimpleNamespace(name="entry", schedule=due, last_run_at=at(last_run), model=row)


def clocked(moment: float) -> Any:
    due = SimpleNamespace(clocked_time=at(moment))
    return SimpleNamespace(name="entry", schedule=due, last_run_at=at(5.0))


@pytest.mark.parametrize(
    ("one", "begun"),
    [
        (entry(5.0), 10.0),
        (entry(5.0, every=60.0), 5.0),  # no slot has come since
        (entry(5.0, start=20.0), 5.0),
        (entry(11.0), 11.0),
        (entry(12.0), 12.0),
        (entry(12.1), 10.0),  # no clock that is right can have shown it
        (entry(99.0, every=3600.0), 10.0),
        (entry(None), None),
        (clocked(7.0), 5.0),
    ],
)
def test_an_entry_begins_at_a_moment_unless_it_ran_since(one: Any, begun: float) -> None:
    moments: Any = at(10.0), at(12.0)
    begin_at(one, *moments)
    assert one.last_run_at == at(begun)


def test_a_clocked_entry_ran_last_just_before_its_time() -> None:
    assert last_run_of(clocked(7.0)) == EPOCH + dt.timedelta(seconds=7, microseconds=-1)
    assert last_run_of(entry(5.0)) == at(5.0)
    assert last_run_of(entry(None)) is None


@pytest.mark.parametrize(
    ("now", "is_ahead"), [(13.0, False), (12.9, True), (15.0, False), (17.5, False)]
)
def test_a_clock_that_shows_less_than_clocks_differ_was_ahead(now: float, is_ahead: bool) -> None:
    in_force = InForce(1.0)
    moment: Any = at(now)
    assert not in_force.was_ahead(moment)
    in_force.looked_at = at(15.0)
    assert in_force.was_ahead(moment) == is_ahead


@pytest.mark.parametrize(
    ("one", "seen", "until"),
    [
        (entry(5.0), 22.1, 22.1),
        (entry(22.1), None, 22.1),
        (entry(23.0), 20.0, 23.0),  # another replica has seen more
        (entry(22.0), 22.0, None),
        (entry(None), None, None),
        (clocked(30.0), None, None),
        (clocked(30.0), 30.0, 30.0),
    ],
)
def test_an_entry_is_ahead_by_what_was_seen_or_by_its_last_run(
    one: Any, seen: float | None, until: float | None
) -> None:
    moment: Any = at(22.0)
    moments: Any = {} if seen is None else {"one": at(seen)}
    found = ahead_of(moment, {"one": one}, moments)
    assert found == ({} if until is None else {"one": at(until)})


class StoredRow:
    """A row of django-celery-beat with USE_TZ = False, which takes no time with a zone."""

    _default_manager: Any = None

    def __init__(self, last_run_at: Moment) -> None:
        self.pk = 7
        self.last_run_at = self.stored = last_run_at
        type(self)._default_manager = self

    def filter(self, pk: int) -> StoredRow:
        assert pk == self.pk
        return self

    def exclude(self, last_run_at__range: tuple[Moment, Moment]) -> StoredRow:
        assert not any(one.tzinfo for one in last_run_at__range)
        return self

    def update(self, last_run_at: Moment) -> None:
        assert not last_run_at.tzinfo
        self.stored = last_run_at


@pytest.mark.parametrize("hours", [0, -5])
def test_a_row_without_time_zones_begins_without_one(hours: int) -> None:
    here = dt.timezone(dt.timedelta(hours=hours))
    one = entry(5.0)
    one.last_run_at = one.last_run_at.replace(tzinfo=None)
    one.model = StoredRow(one.last_run_at)
    moments: Any = [EPOCH.astimezone(here) + dt.timedelta(seconds=s) for s in (10, 12)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        begin_at(one, *moments)
    time.tzset()
    begun = dt.datetime(1970, 1, 1, 0, 0, 10)  # noqa: DTZ001  # in UTC, as Celery takes it
    assert [one.last_run_at, one.model.last_run_at, one.model.stored] == [begun] * 3


def test_entries_new_before_the_first_right_look_begin_at_it() -> None:
    in_force = InForce(1.0)
    old, ahead, behind = entry(5.0), entry(500.0), entry(0.0)
    now: Any = at(20.0)
    for entries in ({"old": old}, {"old": old, "ahead": ahead}):
        assert in_force.begin(entries, {}, now) == {}
    assert ahead.last_run_at == at(500.0)
    in_force.looked_at = at(15.0)
    assert in_force.begin({"old": old, "ahead": ahead, "behind": behind}, {}, now) == {}
    assert [one.last_run_at for one in (old, ahead, behind)] == [at(5.0), at(15.0), at(15.0)]


def test_what_was_seen_by_a_clock_ahead_is_seen_until_the_last_look() -> None:
    in_force = InForce(1.0)
    in_force.looked_at = at(15.0)
    one = entry(500.0)
    now: Any = at(20.0)
    seen: Any = {"one": at(22.1), "other": at(22.0), "gone": at(600.0)}
    entries = {"one": one, "other": entry(5.0)}
    assert in_force.begin(entries, seen, now) == {"one": at(500.0)}
    assert (one.last_run_at, seen) == (at(15.0), {"one": at(15.0), "other": at(22.0)})


@pytest.mark.parametrize("changed", [entry(5.0, every=2.0), entry(5.0, start=3.0)])
def test_of_an_entry_that_was_changed_nothing_was_seen(changed: Any) -> None:
    in_force = InForce(1.0)
    in_force.looked_at = at(15.0)
    now: Any = at(20.0)
    seen: Any = {"entry": at(18.0)}
    in_force.begin({"entry": entry(5.0)}, seen, now)
    assert seen == {"entry": at(18.0)}
    in_force.begin({"entry": changed}, seen, now)
    assert (changed.last_run_at, seen) == (at(15.0), {})


class Due:
    """A schedule of RedBeat's that is due so many seconds after 20; None: never."""

    def __init__(self, left: float | None, *, is_known: bool = True) -> None:
        self.left = left
        self.is_known = is_known

    def now(self) -> Moment | None:
        return at(20.0)

    def remaining_estimate(self, last_run: Moment) -> dt.timedelta | None:
        assert last_run == at(5.0)
        if not self.is_known:
            raise NotImplementedError
        return None if self.left is None else dt.timedelta(seconds=self.left)


def listed(due: Due, last_run: float | None = 5.0, name: str = "entry") -> Any:
    return SimpleNamespace(name=name, schedule=due, last_run_at=at(last_run))


LOOKED_AT: Any = at(15.0)


@pytest.mark.parametrize(
    ("one", "is_changed"),
    [
        (listed(Due(-5.1)), True),
        (listed(Due(-5.0)), False),
        (listed(Due(None)), False),
        (listed(Due(None, is_known=False)), False),
        (listed(Due(-9.0), last_run=None), False),
    ],
)
def test_an_entry_not_listed_though_it_was_due_is_changed(one: Any, is_changed: bool) -> None:
    last = Listed()
    assert not last.is_changed(one, LOOKED_AT)  # how long it has been listed is not known
    last.end_look()
    last.end_look()
    assert last.is_changed(one, LOOKED_AT) == is_changed


@pytest.mark.parametrize(("last_run", "is_changed"), [(14.9, True), (15.0, False)])
def test_an_entry_listed_with_another_schedule_is_changed(
    last_run: float, is_changed: bool
) -> None:
    last, before = Listed(), Due(-9.0)
    last.is_changed(listed(before, last_run), LOOKED_AT)
    last.end_look()
    assert not last.is_changed(listed(before, last_run), LOOKED_AT)
    assert last.is_changed(listed(Due(-9.0), last_run), LOOKED_AT) == is_changed
