"""Beat's ticks, from the claims on the nodes."""

from __future__ import annotations

import pytest

from celery_redlock.operate.locks import Lock, View, lock_of
from celery_redlock.operate.timeline import Tick, tick_of, timeline_of
from celery_redlock.redlock.lease import new_owner

SLOT = "2026-01-01T00:00:00Z"
AT = 1_767_225_600.0


def claim(key: str, remaining: float) -> Lock:
    owner = new_owner("id", "beat-a", is_reservation=True)
    lock = lock_of(key, [View(owner, remaining, 0)])
    assert lock
    return lock


@pytest.mark.parametrize(("remaining", "is_published"), [(120.0, True), (9.0, False)])
def test_a_claim_tells_entry_slot_and_replica(remaining: float, *, is_published: bool) -> None:
    tick = tick_of(claim(f"%beat:my%20bank@0123:close%3Aday:{SLOT}", remaining))
    assert tick == Tick("my bank", "close:day", SLOT, "beat-a", is_published)
    assert tick.at == AT


@pytest.mark.parametrize("key", ["%beat:", "%beat:a:b", "%beat:a@0:b:soon"])
def test_a_key_that_is_no_claim_of_beat_is_left_out(key: str) -> None:
    assert tick_of(claim(key, 9.0)) is None


def at(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def test_each_entry_has_a_lane_for_each_replica_of_its_app() -> None:
    ticks = [
        Tick("bank", "poll", at(60), "beat-b", is_published=False),
        Tick("bank", "poll", at(0), "beat-a", is_published=True),
        Tick("bank", "close", at(30), "beat-a", is_published=True),
        Tick("shop", "close", at(30), "beat-z", is_published=True),
    ]
    timeline = timeline_of(ticks, AT + 120, most=2)
    assert (timeline.minutes, timeline.hidden) == (2, 1)
    shown = {
        (row.app, row.entry, lane.replica): [dot.percent for dot in lane.dots]
        for row in timeline.rows
        for lane in row.lanes
    }
    assert shown == {
        ("bank", "close", "beat-a"): [25.0],
        ("bank", "close", "beat-b"): [],
        ("bank", "poll", "beat-a"): [0.0],
        ("bank", "poll", "beat-b"): [50.0],
    }


def test_a_tick_of_a_clock_that_is_ahead_is_now() -> None:
    tick = Tick("bank", "poll", at(90), "beat-a", is_published=True)
    [row] = timeline_of([tick], AT, most=9).rows
    assert row.lanes[0].dots[0].percent == 100.0


def test_without_ticks_the_timeline_is_empty() -> None:
    assert timeline_of([], AT, most=9) == ([], 1, 0)
