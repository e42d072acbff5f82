"""Entries in force: when one begins, and what was seen by a clock that was ahead."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule

from celery_redlock.beat.in_force import InForce, begin_at
from celery_redlock.beat.slots import EPOCH, Moment


def at(seconds: float | None) -> Moment | None:
    return None if seconds is None else EPOCH + dt.timedelta(seconds=seconds)


def entry(last_run: float, every: float = 1.0) -> Any:
    due = schedule(every, app=Celery("app", set_as_current=False))
    return SimpleNamespace(name="entry", schedule=due, last_run_at=at(last_run))


@pytest.mark.parametrize(
    ("last_run", "every", "begun"),
    [
        (5.0, 1.0, 10.0),
        (5.0, 60.0, 5.0),  # no slot has come since
        (11.0, 1.0, 11.0),
        (12.0, 1.0, 12.0),
        (12.1, 1.0, 10.0),  # no clock that is right can have shown it
        (99.0, 3600.0, 10.0),
    ],
)
def test_an_entry_begins_at_a_moment_unless_it_ran_since(
    last_run: float, every: float, begun: float
) -> None:
    one = entry(last_run, every)
    moments: Any = at(10.0), at(12.0)
    begin_at(one, *moments)
    assert one.last_run_at == at(begun)


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
    begin_at(one, *moments)
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
    seen: Any = {"one": at(600.0), "gone": at(600.0)}
    assert in_force.begin({"one": one}, seen, now) == {"one": at(600.0)}
    assert (one.last_run_at, seen) == (at(15.0), {"one": at(15.0)})
