"""What the simulation must find: each bug, put into the lock or into the rules of its nodes.

Here each is looked for from a schedule on that was picked because it finds it: a fast test must not
depend on chance. `make simulate CONTROLS=1`, as in continuous integration, looks in fresh ones.
"""

from __future__ import annotations

import pytest

from . import stream_bugs
from .bugs import BUGS, FOUND_WITHIN, KNOWN_SEEDS, SEEDS, WITHOUT_GUARD
from .campaign import FOUND_FROM_KNOWN, campaign, control, is_missed

_FOUND_AS = {
    "no_confirm": "token",
    "validity_from_the_end": "exclusion",
    "no_allowance_for_drift": "exclusion",
    "release_of_any_owner": "exclusion",
    "release_without_a_floor": "release",
    "healing_above_the_floor": "release",
    "minority_is_enough": "exclusion",
    "a_grant_without_its_delay": "delay",
    "an_extension_without_its_delay": "delay",
    "a_late_release_ends_the_delay": "delay",
    "failed_attempt_is_not_released": "end",
    "lost_lease_is_extended": "loss",
    "interrupt_is_forgotten": "wakeup",
    "the_exit_waits_for_no_release": "left",
    "no_restart_guard": "exclusion",
    "confirm_by_a_minority": "token",
    "extension_from_the_end": "exclusion",
    "extension_by_a_minority": "exclusion",
    "same_owner_again": "token",
    "nobody_is_woken": "wakeup",
    "a_piece_is_known_as_the_batch": "blame",
    "an_unread_reply_is_owed": "extension",
    "dead_connections_fail_the_attempt": "refused",
    "silent_connections_are_kept": "refused",
    "one_address_is_waited_for": "refused",
    "no_back_off_without_a_quorum": "attempts",
    "a_former_replica_votes": "exclusion",
    "what_a_full_node_said_is_lost": "reason",
    "a_refused_login_is_told_whole": "reason",
    "an_end_calls_the_node_down": "down",
    "a_closed_request_is_not_repeated": "extension",
    "a_request_is_repeated_once": "unreleased",
    "a_broken_attempt_to_connect_is_final": "unreleased",
    "the_keeper_does_not_connect_again": "kept",
    "only_spares_are_waited_for": "refused",
}


@pytest.mark.parametrize(("bug", "kind"), _FOUND_AS.items())
def test_a_bug_is_found(bug: str, kind: str) -> None:
    first = SEEDS[bug]
    assert campaign(range(first, first + 1)).failed == []
    counts = campaign(range(first, first + FOUND_FROM_KNOWN), bug, stops_at_first=True)
    assert counts.failed, f"not found in {counts.schedules} schedules"
    assert counts.failed[0][1].startswith(f"{kind}:")


def test_each_bug_has_a_seed_and_a_number_of_fresh_schedules() -> None:
    assert {*KNOWN_SEEDS} == {*BUGS, WITHOUT_GUARD}
    assert {*stream_bugs.KNOWN_SEEDS} == {*stream_bugs.BUGS}
    assert {*KNOWN_SEEDS, *stream_bugs.KNOWN_SEEDS} == {*_FOUND_AS}
    assert {*FOUND_WITHIN} == {*SEEDS}


def test_a_control_looks_in_fresh_schedules_and_counts_them() -> None:
    [first, second] = [control(("release_of_any_owner", seed)) for seed in (1, 2)]
    assert first["found as"] == second["found as"] == "exclusion"
    most = FOUND_WITHIN["release_of_any_owner"]
    assert first["of at most"] == second["of at most"] == most
    assert first["after schedules"] != second["after schedules"]


def test_a_control_that_is_not_found_says_after_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FOUND_WITHIN, WITHOUT_GUARD, 2)
    found = control((WITHOUT_GUARD, 1))
    assert found == {
        "bug": WITHOUT_GUARD, "found as": "none", "after schedules": 2, "of at most": 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "missed"), [("none", True), ("error", True), ("exclusion", False)]
)
def test_a_bug_that_is_not_found_or_raises_is_missed(kind: str, missed: bool) -> None:
    assert is_missed({"bug": WITHOUT_GUARD, "found as": kind}) is missed


def test_a_control_without_a_number_takes_the_schedule_that_was_picked() -> None:
    found = control(("release_of_any_owner", None))
    assert found == {"bug": "release_of_any_owner", "found as": "exclusion"}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
