"""What the simulation must find: each bug, put into the lock or into the rules of its nodes.

Here each is looked for from a schedule on that was picked because it finds it: a fast test must not
depend on chance. `make simulate CONTROLS=1`, as in continuous integration, looks in fresh ones.
"""

from __future__ import annotations

import pytest

from . import stream_bugs
from .bugs import BUGS, FOUND_WITHIN, KNOWN_SEEDS, SEEDS, WITHOUT_GUARD
from .campaign import FOUND_FROM_KNOWN, campaign, control


def _is_found(bug: str, kind: str) -> None:
    first = SEEDS[bug]
    assert campaign(range(first, first + 1)).failed == []
    counts = campaign(range(first, first + FOUND_FROM_KNOWN), bug, stops_at_first=True)
    assert counts.failed, f"not found in {counts.schedules} schedules"
    assert counts.failed[0][1].startswith(f"{kind}:")


def test_no_confirm_is_found() -> None:
    _is_found("no_confirm", "token")


def test_validity_from_the_end_is_found() -> None:
    _is_found("validity_from_the_end", "exclusion")


def test_no_allowance_for_drift_is_found() -> None:
    _is_found("no_allowance_for_drift", "exclusion")


def test_release_of_any_owner_is_found() -> None:
    _is_found("release_of_any_owner", "exclusion")


def test_release_without_a_floor_is_found() -> None:
    _is_found("release_without_a_floor", "release")


def test_healing_above_the_floor_is_found() -> None:
    _is_found("healing_above_the_floor", "release")


def test_minority_is_enough_is_found() -> None:
    _is_found("minority_is_enough", "exclusion")


def test_a_grant_without_its_delay_is_found() -> None:
    _is_found("a_grant_without_its_delay", "delay")


def test_an_extension_without_its_delay_is_found() -> None:
    _is_found("an_extension_without_its_delay", "delay")


def test_a_late_release_ends_the_delay_is_found() -> None:
    _is_found("a_late_release_ends_the_delay", "delay")


def test_failed_attempt_is_not_released_is_found() -> None:
    _is_found("failed_attempt_is_not_released", "end")


def test_lost_lease_is_extended_is_found() -> None:
    _is_found("lost_lease_is_extended", "loss")


def test_interrupt_is_forgotten_is_found() -> None:
    _is_found("interrupt_is_forgotten", "wakeup")


def test_no_restart_guard_is_found() -> None:
    _is_found("no_restart_guard", "exclusion")


def test_confirm_by_a_minority_is_found() -> None:
    _is_found("confirm_by_a_minority", "token")


def test_extension_from_the_end_is_found() -> None:
    _is_found("extension_from_the_end", "exclusion")


def test_extension_by_a_minority_is_found() -> None:
    _is_found("extension_by_a_minority", "exclusion")


def test_same_owner_again_is_found() -> None:
    _is_found("same_owner_again", "exclusion")


def test_nobody_is_woken_is_found() -> None:
    _is_found("nobody_is_woken", "wakeup")


def test_a_piece_that_is_known_as_the_batch_is_found() -> None:
    _is_found("a_piece_is_known_as_the_batch", "blame")


def test_an_unread_reply_that_is_owed_is_found() -> None:
    _is_found("an_unread_reply_is_owed", "extension")


def test_dead_connections_that_fail_the_attempt_are_found() -> None:
    _is_found("dead_connections_fail_the_attempt", "refused")


def test_one_address_that_is_waited_for_is_found() -> None:
    _is_found("one_address_is_waited_for", "refused")


def test_no_back_off_without_a_quorum_is_found() -> None:
    _is_found("no_back_off_without_a_quorum", "attempts")


def test_a_former_replica_that_votes_is_found() -> None:
    _is_found("a_former_replica_votes", "exclusion")


def test_each_bug_has_a_seed_and_a_number_of_fresh_schedules() -> None:
    assert {*KNOWN_SEEDS} == {*BUGS, WITHOUT_GUARD}
    assert {*stream_bugs.KNOWN_SEEDS} == {*stream_bugs.BUGS}
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


def test_a_control_without_a_number_takes_the_schedule_that_was_picked() -> None:
    found = control(("release_of_any_owner", None))
    assert found == {"bug": "release_of_any_owner", "found as": "exclusion"}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
