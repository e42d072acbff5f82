"""The real lock, in hundreds of schedules of faults; `make simulate` runs more."""

from __future__ import annotations

import gc

import pytest

from . import campaign as campaigns
from .campaign import campaign, explained, slices_of
from .tasks.schedule import FIRST_PREFORK_SEED, FIRST_RESERVED_SEED, FIRST_SEED

# Split, so that several processes share them.
_EACH = 80


@pytest.mark.parametrize(
    "part", [0, 1, *(pytest.param(part, marks=pytest.mark.long) for part in (2, 3))]
)
def test_no_schedule_breaks_a_promise(part: int) -> None:
    counts = campaign(range(part * _EACH, (part + 1) * _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.schedules == _EACH
    # A simulation in which nothing happens finds nothing.
    assert counts.acquisitions > 2 * _EACH
    assert len(counts.faults) > 10


def test_a_release_noted_after_the_next_lock_frees_nothing() -> None:
    assert campaign([77_699]).failed == []


def test_a_released_lock_may_be_healed_where_a_quorum_has_forgotten_it() -> None:
    assert campaign([437_340]).failed == []


def test_a_campaign_leaves_nothing_that_is_never_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(campaigns, "_COLLECT_EVERY", 1)
    monkeypatch.setattr(campaigns, "_FREEZE_EVERY", 1)
    campaign(range(2))
    left = gc.get_freeze_count()
    gc.freeze()  # as it was for the tests after this one
    assert left == 0


def test_every_seed_is_run_once_and_each_kind_in_its_share() -> None:
    slices = list(slices_of(7, 5200, 1100))
    seeds = [seed for one in slices for seed in one]
    assert sorted(seeds) == [
        *range(7, 5207),
        *range(FIRST_SEED + 7, FIRST_SEED + 722),
        *range(FIRST_RESERVED_SEED + 7, FIRST_RESERVED_SEED + 282),
        *range(FIRST_PREFORK_SEED + 7, FIRST_PREFORK_SEED + 117),
    ]
    half = [seed for one in slices[: len(slices) // 2] for seed in one]
    calls = sum(seed >= FIRST_SEED for seed in half)
    assert 0.1 < calls / len(half) < 0.35
