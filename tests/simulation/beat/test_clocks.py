"""Stories of beat on hosts whose clocks differ all the time, by up to a minute.

Replicas within `redlock_max_clock_skew` of the nodes publish each slot in force once. One that is
further off publishes nothing, and the other does all the work. What a worker does with a tick
depends on no clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from .deploys import Deploys
from .rows import Rows
from .stage import FAR_S, HEART, LONGEST_S, RIGHT, SKEW_S, START, Clocks, Stage
from .test_beat import KINDS, SEEDS, find, play


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def near(seed: int) -> Clocks:
    """Return clocks that are right enough."""
    chance = random.Random(seed)
    return chance.uniform(-SKEW_S, SKEW_S), chance.uniform(-SKEW_S, SKEW_S)


def far(seed: int) -> Clocks:
    """Return clocks of which one is off."""
    (first, second), chance = near(seed), random.Random(-seed)
    off = chance.uniform(SKEW_S, LONGEST_S)
    return chance.choice([(-off, second), (off, second), (first, -off), (first, off)])


@pytest.mark.parametrize("seed", SEEDS[::2])
@pytest.mark.parametrize("kind", KINDS)
def test_replicas_whose_clocks_differ_publish_each_slot_once(kind: type[Stage], seed: int) -> None:
    judgement, story = play(kind, seed, ahead=near(seed))
    assert judgement.is_right, f"{judgement}\n{story}"
    assert judgement.due > 50


@pytest.mark.parametrize("seed", SEEDS[::2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_makes_up_for_one_whose_clock_is_off(kind: type[Stage], seed: int) -> None:
    judgement, story = play(kind, seed, ahead=far(seed))
    assert judgement.is_right, f"{judgement}\n{story}"
    assert judgement.due > 50


def test_a_clock_that_is_not_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find("clocks_are_not_compared", Deploys, monkeypatch, far)


@pytest.mark.mutation
def test_entries_begun_by_any_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find("entries_begin_by_any_clock", Rows, monkeypatch, far)


def slots_of(kind: type[Stage], story: Callable[[Stage], object], ahead: Clocks) -> list[float]:
    """Return the slots that were published of the entry due each second, by the stage's begin."""
    with pytest.MonkeyPatch.context() as patch:
        stage = kind(0, patch, ahead=ahead)
        story(stage)
        return [slot - START for name, slot in stage.published if name == HEART]


def test_replicas_whose_clocks_are_both_off_publish_nothing() -> None:
    """Until one is right, which makes up for all ticks since beat was started."""

    def story(stage: Stage) -> None:
        stage.pass_time(20)
        assert stage.published == []
        stage.replicas[0].redlock.clock.ahead = 0.0
        stage.pass_time(3)

    slots = slots_of(Deploys, story, (LONGEST_S, -LONGEST_S))
    assert slots == [second + 0.5 for second in range(25)]


# ---- what these stories have found


def test_a_clock_that_is_ahead_loses_no_tick_of_a_new_entry() -> None:
    """It makes the row of an entry of `beat_schedule`; the other replica is right all the time."""

    def story(stage: Stage) -> None:
        stage.end_replica(1, is_killed=True)
        stage.pass_time(5)
        stage.start(1)
        stage.pass_time(3)

    slots = slots_of(Rows, story, (LONGEST_S, 0.0))
    assert slots == [second + 0.5 for second in range(10)]


def test_a_clock_that_was_behind_begins_no_new_entry_before_it() -> None:
    """It is put right once beat has started, as on a host that has just booted."""

    def story(stage: Stage) -> None:
        stage.replicas[0].redlock.clock.ahead = 0.0
        stage.pass_time(3)

    assert min(slots_of(Deploys, story, (-LONGEST_S, 0.0))) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_ticks_are_made_up_for_after_a_clock_was_ahead(kind: type[Stage]) -> None:
    """The clocks of all were, and are right; then no replica runs for a while."""

    def story(stage: Stage) -> None:
        stage.step_all(FAR_S)
        stage.pass_time(2)
        for number in 0, 1:
            stage.end_replica(number, is_killed=False)
            stage.start(number)
        stage.step_all(-FAR_S)
        stage.pass_time(3)
        for number in 0, 1:
            stage.end_replica(number, is_killed=True)
        stage.pass_time(5)
        for number in 0, 1:
            stage.start(number)
        stage.pass_time(3)

    assert {7.5, 8.5, 9.5, 10.5, 11.5} <= {*slots_of(kind, story, RIGHT)}


def test_a_row_changed_after_the_clock_was_set_back_is_seen() -> None:
    """The time of its change is earlier than that of the one before."""

    def story(stage: Any) -> None:
        stage.give("a", 1)
        stage.step_all(FAR_S)
        stage.pass_time(2)
        stage.give(HEART, 60)
        stage.pass_time(2)
        stage.step_all(-FAR_S)
        stage.pass_time(2)
        stage.give(HEART, 1)
        stage.pass_time(3)

    assert slots_of(Rows, story, RIGHT)[-3:] == [8.5, 9.5, 10.5]
