"""A user's hands break no promise, and find each bug that they were made for.

`REDLOCK_HANDS=2000` in the environment tries so many sequences of steps, by which more are found.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.calls import Misnamed

from .bugs import BUGS
from .machine import Hands

SEQUENCES = int(os.environ.get("REDLOCK_HANDS", "15"))
_ALWAYS_THE_SAME = settings(
    derandomize=True, database=None, deadline=None, max_examples=SEQUENCES, stateful_step_count=30
)


def test_no_sequence_of_steps_breaks_a_promise() -> None:
    run_state_machine_as_test(Hands, settings=_ALWAYS_THE_SAME)


def test_a_hold_with_one_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"the lock \w of another is gone|\w is left locked"
    _is_found("one_lease_per_hold", what, _enter_twice, monkeypatch)


def test_a_thread_that_leaves_its_newest_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _is_found("block_of_the_thread", "None", _leave_the_lost_block_first, monkeypatch)


def test_an_inner_block_that_releases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"the lease on \w was released"
    _is_found("inner_block_releases_lease", what, _leave_an_inner_block, monkeypatch)


def test_a_child_that_releases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"(?s:Traceback .*the lease on \w was released)"
    _is_found("child_releases", what, _release_in_a_child, monkeypatch)


def test_an_exit_that_ends_the_keeper_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"the lease on \w is lost"
    # Not at random: 500 sequences did not have these steps in this order.
    _is_found("exit_in_a_callback_ends_the_keeper", what, _lose_a_beside_b, monkeypatch)


def test_a_second_release_that_is_a_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"a loss of \w, which was released"
    _is_found("second_release_is_a_loss", what, _release_at_each_line, monkeypatch)


def test_a_kept_exit_that_serves_one_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = "a block was not left"
    _is_found("kept_exit_serves_one_block", what, _use_a_pair_twice, monkeypatch)


def test_a_stack_that_ends_another_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"the lease on \w is lost"
    # Not at random: 500 sequences did not have these steps, one right after the other.
    _is_found("pushed_exit_is_that_of_the_next_block", what, _close_a_beside_b, monkeypatch)


def test_an_exit_that_leaves_a_with_block_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"the lease on \w was released"
    _is_found("exit_by_hand_leaves_a_with_block", what, _clean_up_when_refused, monkeypatch)


def test_a_key_that_is_written_as_it_is_formatted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = r"\w is held 2 times|the lock \w of another is gone"
    _is_found("key_as_formatted", what, _acquire_by_equal_keys, monkeypatch)


def test_a_loss_that_a_late_node_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    what = "None"
    _is_found("release_decided_by_any_majority", what, _leave_a_lost_block, monkeypatch)


def _is_found(
    bug: str, what: str, steps: Callable[[Hands], None], patch: pytest.MonkeyPatch
) -> None:
    """Assert that steps break a promise with a bug, and only with it."""
    _take(steps)
    BUGS[bug](patch)
    with pytest.raises(AssertionError, match=rf"^({what})"):
        _take(steps)


def _take(steps: Callable[[Hands], None]) -> None:
    hands = Hands()
    try:
        hands.begin("nothing", "SystemExit")
        steps(hands)
        hands.check()
    finally:
        hands.teardown()


def _enter_twice(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.enter("ann", 0, "with")
    hands.pass_time(1.0)


def _release_in_a_child(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.fork("ann", [], [], [0], "with")


def _leave_the_lost_block_first(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.drop("a", 0.0)
    hands.enter("ann", 0, "with")
    hands.leave("ann", 0, None, True)


def _leave_an_inner_block(hands: Hands) -> None:
    hands.acquire("ann", 0, "a", True, "nothing", 2)
    hands.leave_lease("ann", 0, 0)


def _lose_a_beside_b(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.enter("bob", 1, "with")
    hands.drop("a", 15.0)
    hands.pass_time(45.0)


def _release_at_each_line(hands: Hands) -> None:
    for line in range(1, 150, 5):
        hands.acquire("ann", 0, "a", True, "nothing", 0)
        hands.use_at_once(["ann", "bob"], 0, "release", "release", line)
        hands.pass_time(1.0)
        hands.check()


def _leave_a_lost_block(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.drop_on_two_nodes("a", 2, 1)
    hands.leave("ann", 0, None, True)


def _acquire_by_equal_keys(hands: Hands) -> None:
    hands.acquire("ann", 0, "a", True, "nothing", 0)
    hands.acquire("bob", 0, Misnamed("a"), True, "nothing", 0)


def _use_a_pair_twice(hands: Hands) -> None:
    for _ in range(2):
        hands.enter("ann", 0, "pair")
        hands.leave("ann", 0, None, True)


def _close_a_beside_b(hands: Hands) -> None:
    hands.enter("ann", 0, "push")
    hands.enter("ann", 1, "hand")
    hands.leave("ann", 0, None, True)
    hands.pass_time(1.0)


def _clean_up_when_refused(hands: Hands) -> None:
    hands.enter("ann", 0, "with")
    hands.enter("ann", 0, "push")
    hands.clean_up("ann", 0, "hand")


@pytest.mark.mutation
@pytest.mark.parametrize(
    "bug",
    [
        "key_as_formatted",
        "release_decided_by_any_majority",
        "one_lease_per_hold",
        "block_of_the_thread",
        "inner_block_releases_lease",
        "kept_exit_serves_one_block",
        "exit_by_hand_leaves_a_with_block",
    ],
)
def test_sequences_at_random_find_a_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    at_once = settings(_ALWAYS_THE_SAME, max_examples=500, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Hands, settings=at_once)


def test_each_bug_has_a_test() -> None:
    assert len(BUGS) == 11


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
