"""Stories of beat: each slot in force is published once, and no other.

`make check` plays twice as many as `make test`; `REDLOCK_BEAT_STORIES=300` in the environment, so
many of each kind. A seed repeats a story: `REDLOCK_BEAT_SEED=17`.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.support.judges.slots_in_force import Judgement

from .bugs import BUGS, FOUND_WITHIN
from .deploys import Deploys
from .redbeats import RedBeats
from .rows import Rows
from .stage import RIGHT, START, Clocks, Stage

STORIES = int(os.environ.get("REDLOCK_BEAT_STORIES", "2"))
FIRST = int(os.environ.get("REDLOCK_BEAT_SEED", "1"))
SEEDS = [
    *range(FIRST, FIRST + STORIES),
    *(
        pytest.param(seed, marks=pytest.mark.long)
        for seed in range(FIRST + STORIES, FIRST + 2 * STORIES)
    ),
]
EVENTS = 10
KINDS: tuple[type[Stage], ...] = (Deploys, Rows, RedBeats)
FRESH = 1_000_000


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


def play(
    kind: type[Stage], seed: int, *, is_plain: bool = False, ahead: Clocks = RIGHT
) -> tuple[Judgement, str]:
    """Play a story; return what was wrong, and what happened."""
    with pytest.MonkeyPatch.context() as patch:
        stage = kind(seed, patch, is_plain=is_plain, ahead=ahead)
        judgement = stage.play(EVENTS)
    return judgement, f"{kind.__name__}, seed {seed}, {ahead}\n" + "\n".join(stage.told)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_slot_in_force_is_published_once(kind: type[Stage], seed: int) -> None:
    judgement, story = play(kind, seed)
    assert judgement.is_right, f"{judgement}\n{story}"
    assert judgement.due > 50


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_beat_of_celery_alone_publishes_other_slots(kind: type[Stage]) -> None:
    """The control: one replica of Celery's own, which is all that there may be."""
    judgements = [play(kind, seed, is_plain=True)[0] for seed in range(FIRST, FIRST + 3)]
    assert any(judgement.lost for judgement in judgements)
    if kind is not RedBeats:  # which publishes at most once what it has missed
        assert any(judgement.old or judgement.doubled for judgement in judgements)


def test_a_replica_that_stood_still_begins_no_row_before_the_others() -> None:
    """Its last run, which it noted only now, hid that the row had been begun anew since."""
    with pytest.MonkeyPatch.context() as patch:
        stage = Rows(0, patch)
        stage.give("a", 5)
        stage.pass_time(12)
        stage.replicas[0].is_stopped = True
        stage.pass_time(9)
        stage.give("a", 1)
        stage.pass_time(3)
        stage.replicas[0].is_stopped = False
        stage.replicas[0].due_at = stage.clock.now()
        stage.pass_time(3)
        slots = sorted(slot - START for name, slot in stage.published if name == "a")
    changed = [slot + 0.5 for slot in range(23, 29)]
    assert slots == [4.5, 9.5, 14.5, 19.5, *changed]


@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("claims_are_not_taken", Deploys),
        ("in_force_is_ignored", Deploys),
        pytest.param("whole_rows_are_stored", Rows, marks=pytest.mark.long),
    ],
)
def test_a_bug_is_found_in_fresh_stories(
    bug: str, kind: type[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    find(bug, kind, monkeypatch)


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("bug", "kind"),
    [
        ("seen_by_a_clock_ahead_is_kept", Deploys),
        ("a_last_run_ahead_is_kept", Deploys),
        ("clocked_rows_ran_when_they_were_made", Rows),
        ("earlier_changes_are_unseen", Rows),
        ("redbeats_last_run_ahead_is_kept", RedBeats),
        ("redbeats_schedules_are_not_compared", RedBeats),
    ],
)
def test_a_rarer_bug_is_found_in_fresh_stories(
    bug: str, kind: type[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    find(bug, kind, monkeypatch)


def test_each_bug_has_a_test() -> None:
    assert BUGS.keys() == FOUND_WITHIN.keys()
    assert len(BUGS) == 11


def find(
    bug: str,
    kind: type[Stage],
    patch: pytest.MonkeyPatch,
    clocks_of: Callable[[int], Clocks] = lambda _: RIGHT,
) -> None:
    """Assert that fresh stories find a bug, in as many as they may take."""
    BUGS[bug](patch)
    seeds = range(FRESH, FRESH + FOUND_WITHIN[bug])
    assert not all(play(kind, seed, ahead=clocks_of(seed))[0].is_right for seed in seeds)
