"""The real execution of messages, in schedules of deaths, redeliveries and refusals."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import FOUND_FROM_KNOWN, campaign, explained, shrunk, traced

from .bugs import BUGS, KNOWN_SEEDS
from .schedule import FIRST_PREFORK_SEED, FIRST_RESERVED_SEED, FIRST_SEED, traffic_of

_EACH = 50
_FOUND_AS = {
    "acknowledged_though_not_published": "lost",
    "acknowledged_before_published": "lost",
    "copy_is_a_duplicate": "lost",
    "copy_runs_beside": "exclusion",
    "copy_is_dropped": "lost",
    "copy_stores_a_result": "result",
    "done_mark_is_ignored": "twice",
    "done_before_the_result": "lost",
    "runs_without_a_quorum": "unlocked",
    "dropped_without_a_quorum": "holder",
    "coalesced_into_the_run_before": "event",
    "lock_is_not_released": "free",
    "slot_outlives_its_delivery": "event",
    "rest_of_a_slot_is_a_copy": "lost",
    "slot_is_held_during_the_run": "event",
    "retry_of_a_run_once_more_has_run": "lost",
    "lock_is_not_handed_over": "handed",
    "retry_is_a_duplicate": "holder",
    "requeued_without_its_expiry": "expired",
    "discarded_with_its_reservation": "reserved",
    "time_limit_leaves_the_reservation": "rest",
    "time_limit_in_a_release_leaves_it": "free",
    "lock_of_a_dead_child_stays": "orphan",
    "leases_of_children_are_not_renewed": "loss",
    "deadlines_of_children_are_not_watched": "outrun",
    "next_look_comes_too_late": "loss",
    "reservation_outlives_its_publication": "reserved",
    "dropped_without_its_reservation": "lost",
    "reservation_is_not_taken_over": "progress",
    "delay_of_an_orphan_begins_anew": "stays",
    "lost_lock_is_handed_over": "delay",
    "left_release_begins_a_delay": "stays",
}


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
def test_each_message_ends_as_its_policy_says(part: int) -> None:
    first = FIRST_SEED + part * _EACH
    counts = campaign(range(first, first + _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    # A simulation in which nothing happens finds nothing.
    assert counts.endings["run"] > _EACH
    assert counts.endings["dropped"] > 10
    assert counts.endings["handed on"] > 10
    assert counts.faults["redelivery"] > _EACH
    assert counts.faults["crash"] > 10


def test_each_reserved_call_runs_or_is_the_duplicate_of_one() -> None:
    counts = campaign(range(FIRST_RESERVED_SEED, FIRST_RESERVED_SEED + _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.endings["run"] > _EACH
    assert counts.endings["duplicate"] > _EACH
    assert counts.faults["crash"] > 10
    assert counts.faults["refuse"] > 5


def test_each_ending_that_celery_decides_is_simulated() -> None:
    counts = campaign(range(FIRST_SEED + 200, FIRST_SEED + 200 + _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.endings["retried"] > 5
    assert counts.endings["discarded"] > 5
    assert counts.endings["timed out"] > 2


def test_the_keeper_of_a_pool_keeps_and_releases_its_childrens_leases() -> None:
    counts = campaign(range(FIRST_PREFORK_SEED, FIRST_PREFORK_SEED + _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.endings["run"] > _EACH
    assert counts.faults["crash"] > 10
    assert counts.faults["pause"] > 3


@pytest.mark.parametrize("first", [FIRST_SEED, FIRST_RESERVED_SEED, FIRST_PREFORK_SEED])
def test_some_schedules_of_each_kind_have_a_lock_delay(first: int) -> None:
    delayed = [seed for seed in range(first, first + 400) if traffic_of(seed).lock_delay]
    assert 10 < len(delayed) < 40
    counts = campaign(delayed[:10])
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.faults["kill" if first == FIRST_PREFORK_SEED else "pause"] > 2
    assert counts.endings["retried"] > 2


@pytest.mark.parametrize(("bug", "kind"), _FOUND_AS.items())
def test_a_bug_in_the_execution_is_found(bug: str, kind: str) -> None:
    first = KNOWN_SEEDS[bug]
    counts = campaign(range(first, first + FOUND_FROM_KNOWN), bug, stops_at_first=True)
    assert counts.failed, f"not found in {counts.schedules} schedules"
    assert counts.failed[0][1].startswith(f"{kind}:")


def test_without_its_bug_no_known_seed_fails() -> None:
    assert campaign(sorted({*KNOWN_SEEDS.values()})).failed == []


def test_a_retry_that_is_stored_late_is_not_taken_for_a_lost_message() -> None:
    # Its publication is confirmed only after the message has run, or a copy of it has ended.
    assert campaign([1_003_000_435, 1_003_001_630, 1_007_005_953]).failed == []


def test_a_copy_runs_beside_a_retry_of_the_same_message() -> None:
    # It runs once more, for others; neither is a duplicate of the other.
    assert campaign([1_003_000_944]).failed == []


def test_a_copy_that_has_the_lock_runs_though_a_mark_is_left_then() -> None:
    # The run that has lost its lease retries, while the copy's process stands still.
    assert campaign([1_000_400_896]).failed == []


def test_a_copy_does_not_run_after_the_retry_of_a_killed_retry() -> None:
    # Two processes are killed just after they have published a retry: they leave no marks.
    assert campaign([3_024_000_973]).failed == []


def test_each_bug_has_a_seed_and_a_kind() -> None:
    assert {*KNOWN_SEEDS} == {*BUGS} == {*_FOUND_AS}


def test_a_seed_of_calls_replays_and_shrinks() -> None:
    bug = "copy_runs_beside"
    traffic = traffic_of(KNOWN_SEEDS[bug])
    first, second = traced(traffic, bug), traced(traffic, bug)
    assert first.trace == second.trace
    assert len(first.trace) > 100
    assert first.violation
    small = shrunk(traffic, first.violation.kind, bug)
    assert len(str(small)) < len(str(traffic))
    assert f"{traced(small, bug).violation}".startswith(f"{first.violation.kind}:")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
