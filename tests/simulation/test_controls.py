"""What the simulation must find: each bug, put into the lock or into the rules of its nodes.

`python -m tests.simulation --controls` counts how many schedules each takes from fresh seeds.
"""

from __future__ import annotations

import pytest

from .bugs import BUGS, KNOWN_SEEDS, WITHOUT_GUARD
from .campaign import campaign

_MOST = 3000
"""From a seed that was known to find it, before the code around it changed."""


def _is_found(bug: str, kind: str) -> None:
    first = KNOWN_SEEDS[bug]
    assert campaign(range(first, first + 1)).failed == []
    counts = campaign(range(first, first + _MOST), bug, stops_at_first=True)
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


def test_failed_attempt_is_not_released_is_found() -> None:
    _is_found("failed_attempt_is_not_released", "end")


def test_lost_lease_is_extended_is_found() -> None:
    _is_found("lost_lease_is_extended", "loss")


def test_interrupt_is_forgotten_is_found() -> None:
    _is_found("interrupt_is_forgotten", "end")


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


def test_each_bug_has_a_seed() -> None:
    assert {*KNOWN_SEEDS} == {*BUGS, WITHOUT_GUARD}


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
