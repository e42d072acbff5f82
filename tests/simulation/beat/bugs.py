"""Bugs put into the scheduler that stories must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.beat import claiming, in_force, redbeat
from celery_redlock.beat.claiming import ClaimsTicks
from celery_redlock.beat.clock_check import ClockCheck, Trust
from celery_redlock.beat.in_force import InForce, Listed
from celery_redlock.beat.shared_rows import SharesRows, StoresItsRuns
from celery_redlock.beat.slot_schedule import aware
from celery_redlock.beat.slots import Moment
from celery_redlock.beat.ticks import Claims
from celery_redlock.redlock import Lease

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}
FOUND_WITHIN = {
    "claims_are_not_taken": 1,
    "in_force_is_ignored": 40,
    "seen_by_a_clock_ahead_is_kept": 100,
    "clocked_rows_ran_when_they_were_made": 30,
    "clocks_are_not_compared": 10,
    "entries_begin_by_any_clock": 60,
    "a_last_run_ahead_is_kept": 200,
    "earlier_changes_are_unseen": 160,
    "whole_rows_are_stored": 30,
    "redbeats_last_run_ahead_is_kept": 100,
    "redbeats_schedules_are_not_compared": 100,
}
"""Fresh stories in which each is found: about ten times as many as it took."""


def _bug(bug: Bug) -> Bug:
    BUGS[bug.__name__.strip("_")] = bug
    return bug


@_bug
def _claims_are_not_taken(patch: pytest.MonkeyPatch) -> None:
    def acquire(claims: Claims, tick: Any) -> Lease:
        now = claims.redlock.clock.now()
        return Lease(tick.key, "me", 1, 10_000, now + 10, claims.redlock.clock, acquired_at=now)

    patch.setattr(Claims, "acquire", acquire)


@_bug
def _in_force_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InForce, "changed", lambda *_: [])


@_bug
def _seen_by_a_clock_ahead_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimsTicks, "_check_clock", lambda *_: None)
    patch.setattr(in_force, "ahead_of", lambda *_: {})


@_bug
def _clocked_rows_ran_when_they_were_made(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claiming, "last_run_of", lambda entry: entry.last_run_at)


@_bug
def _clocks_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClockCheck, "check", lambda _: Trust.RIGHT)


@_bug
def _entries_begin_by_any_clock(patch: pytest.MonkeyPatch) -> None:
    original = ClaimsTicks.setup_schedule

    def set_up(scheduler: Any) -> None:
        scheduler._in_force.looked_at = scheduler._now()
        original(scheduler)
        scheduler._set_up_at = scheduler._redlock.clock.now()
        scheduler._begin_schedule(scheduler._now())

    patch.setattr(ClaimsTicks, "setup_schedule", set_up)


@_bug
def _a_last_run_ahead_is_kept(patch: pytest.MonkeyPatch) -> None:
    original = in_force.begin_at

    def begin_at(entry: Any, moment: Moment, latest: Moment) -> None:
        if not entry.last_run_at or aware(entry.last_run_at) <= latest:
            original(entry, moment, latest)

    patch.setattr(in_force, "begin_at", begin_at)


@_bug
def _earlier_changes_are_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(SharesRows, "schedule_changed")


@_bug
def _whole_rows_are_stored(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(StoresItsRuns, "save")


@_bug
def _redbeats_last_run_ahead_is_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redbeat, "all_keys", lambda _: [])


@_bug
def _redbeats_schedules_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Listed, "is_changed", lambda *_: False)
