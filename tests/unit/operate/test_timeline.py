"""Beat's ticks, from the claims on the nodes."""

from __future__ import annotations

import pytest

from celery_redlock.operate.locks import Kind, Lock, lock_of
from celery_redlock.operate.timeline import Tick, certain, tick_of, timeline_of
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy

SLOT = "2026-01-01T00:00:00Z"
AT = 1_767_225_600.0


def claim(key: str, remaining: float, owner: str = "") -> Lock:
    owner = owner or new_owner("id", "beat-a", is_reservation=True)
    lock = lock_of(key, [Busy(owner, round(remaining * 1000), 0)])
    assert lock
    return lock


@pytest.mark.parametrize(("remaining", "state"), [(120.0, Kind.PUBLISHED), (9.0, Kind.CLAIM)])
def test_a_claim_tells_entry_slot_and_replica(remaining: float, state: Kind) -> None:
    tick = tick_of(claim(f"%beat:my%20bank@0123:close%3Aday:{SLOT}", remaining))
    assert tick == Tick("my bank", "close:day", SLOT, "beat-a", state)
    assert tick.at == AT
    assert tick.as_json() == {
        "app": "my bank", "entry": "close:day", "slot": SLOT, "replica": "beat-a", "why": None,
    }  # fmt: skip


def test_a_claim_whose_owner_names_nobody_is_a_tick() -> None:
    key = f"%beat:bank@0123:close:{SLOT}:missed"
    assert tick_of(claim(key, 9.0, "?@")) == Tick("bank", "close", SLOT, "-", Kind.MISSED)


def test_a_note_tells_that_a_tick_was_missed() -> None:
    tick = tick_of(claim(f"%beat:my%20bank@0123:close%3Aday:{SLOT}:missed", 80_000.0))
    assert tick == Tick("my bank", "close:day", SLOT, "beat-a", Kind.MISSED, "id")
    assert tick.as_json()["why"] == "id"
    assert timeline_of([tick], AT, most=9).rows == {
        ("my bank", "close:day"): {"beat-a": [(100.0, tick)]}
    }


def test_a_tick_that_another_replica_has_published_was_not_missed() -> None:
    def tick(second: int, replica: str, state: Kind) -> Tick:
        return Tick("bank", "close", at(second), replica, state)

    missed, published = tick(0, "a", Kind.MISSED), tick(0, "b", Kind.PUBLISHED)
    late, claimed = tick(1, "a", Kind.MISSED), tick(1, "b", Kind.CLAIM)
    assert certain([missed, published, late, claimed]) == [published, late, claimed]


@pytest.mark.parametrize("key", ["%beat:", "%beat:a:b", "%beat:a@0:b:soon"])
def test_a_key_that_is_no_claim_of_beat_is_left_out(key: str) -> None:
    assert tick_of(claim(key, 9.0)) is None


def at(seconds: int) -> str:
    return f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def test_each_entry_has_a_lane_for_each_replica_of_its_app() -> None:
    ticks = [
        Tick("bank", "poll", at(40), "beat-b", Kind.CLAIM),
        Tick("bank", "poll", at(0), "beat-a", Kind.PUBLISHED),
        Tick("bank", "close", at(30), "beat-a", Kind.PUBLISHED),
        Tick("shop", "close", at(30), "beat-z", Kind.PUBLISHED),
    ]
    timeline = timeline_of(ticks, AT + 120, most=2)
    assert (timeline.minutes, timeline.hidden) == (2, 1)
    shown = {
        (app, entry, replica): [percent for percent, _ in dots]
        for (app, entry), lanes in timeline.rows.items()
        for replica, dots in lanes.items()
    }
    assert shown == {
        ("bank", "close", "beat-a"): [25.0],
        ("bank", "close", "beat-b"): [],
        ("bank", "poll", "beat-a"): [0.0],
        ("bank", "poll", "beat-b"): [33.33],
    }


def test_a_tick_of_a_clock_that_is_ahead_is_now() -> None:
    tick = Tick("bank", "poll", at(90), "beat-a", Kind.PUBLISHED)
    assert timeline_of([tick], AT, most=9).rows["bank", "poll"] == {"beat-a": [(100.0, tick)]}


def test_without_ticks_the_timeline_is_empty() -> None:
    assert timeline_of([], AT, most=9) == ({}, 1, 0)
