"""The table of docs/explanation, "Why the token is sound", one test a row.

A row that breaks must yield its counter-example; a row that holds must have been explored to the
last state, and must have been about something: the acquisitions it speaks of do complete in it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from . import promises
from .state import Phase
from .variants import Admit, Attempt, Clocks, Confirm, Heal, Rules, Scope, Supersede
from .verdicts import (
    COPIES,
    EXTENDING_A,
    HAND_OVER,
    LEASES,
    RESERVATION,
    RETRIES,
    TOKENS,
    WITH_TOKEN,
    A,
    B,
    C,
    explored,
    together,
)

DUPLICATE = promises.completed_acquisitions_have_distinct_tokens.__name__
OUT_OF_ORDER = promises.tokens_follow_real_time.__name__
HELD, RELEASING, FAILED = Phase.HELD, Phase.RELEASING, Phase.FAILED

# ---- the token


def test_without_a_confirm_two_holders_can_share_a_token() -> None:
    found = explored(Scope(), *TOKENS, rules=Rules(confirm=Confirm.NEVER_ASKED))
    assert found.violation == DUPLICATE, str(found)
    assert len(found.trace) == 10, str(found)  # as docs/explanation tells it, with both starts


def test_an_unconditional_confirm_lets_holders_share_a_token() -> None:
    found = explored(Scope(), *TOKENS, rules=Rules(confirm=Confirm.UNCONDITIONALLY))
    assert found.violation == DUPLICATE, str(found)


@pytest.mark.parametrize("nodes", [3, 5])
def test_a_confirm_by_a_minority_lets_holders_share_a_token(nodes: int) -> None:
    found = explored(Scope(nodes=nodes), *TOKENS, rules=Rules(confirmed_by_majority=False))
    assert found.violation == DUPLICATE, str(found)


def test_confirm_by_a_majority_with_a_fresh_owner_holds() -> None:
    found = explored(Scope(), *TOKENS, rules=Rules(confirm=Confirm.IF_OWNER))
    assert found.holds, str(found)
    assert together(found, HELD, HELD)


@pytest.mark.long
def test_a_duplicated_grant_breaks_a_confirm_without_floor() -> None:
    found = explored(Scope(duplicates=1), *TOKENS, rules=Rules(confirm=Confirm.IF_OWNER))
    assert found.violation == DUPLICATE, str(found)


@pytest.mark.long
def test_a_duplicated_grant_is_safe_with_a_confirm_by_floor() -> None:
    found = explored(Scope(duplicates=1), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)
    assert found.fired["grants again"]


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_every_size_of_quorum_holds(nodes: int) -> None:
    found = explored(Scope(nodes=nodes, expiries=2), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)


@pytest.mark.long
def test_whatever_the_clocks_propose_holds() -> None:
    found = explored(Scope(leap=2, expiries=3), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)


def test_three_clients_hold() -> None:
    found = explored(Scope(attempts=(A, B, C), expiries=1), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD, Phase.GRANTING)
    assert together(found, Phase.GRANTING, HELD, HELD)


def test_a_second_attempt_under_a_fresh_owner_holds() -> None:
    found = explored(Scope(attempts=RETRIES[:3], expiries=1), *TOKENS)
    assert found.holds, str(found)
    assert together(found, FAILED, HELD, HELD)


@pytest.mark.long
def test_a_reused_owner_breaks_a_confirm_without_floor() -> None:
    reused = Attempt("a", retry_of=0, same_owner_as=0)
    scope = Scope(attempts=(A, B, reused), expiries=3)
    found = explored(scope, *TOKENS, rules=Rules(confirm=Confirm.IF_OWNER))
    assert found.violation == DUPLICATE, str(found)


# ---- release


def test_while_no_lock_expires_one_client_holds_at_a_time() -> None:
    found = explored(Scope(releases=True, expiries=0), promises.a_holder_keeps_its_majority)
    assert found.holds, str(found)
    assert together(found, HELD, RELEASING)
    assert together(found, RELEASING, HELD)


def test_a_grant_can_outlive_a_release_on_another_connection() -> None:
    found = explored(
        Scope(releases=True, expiries=0),
        promises.no_grant_outlives_its_release,
        rules=Rules(release_follows_grant=False),
    )
    assert found.violation == promises.no_grant_outlives_its_release.__name__, str(found)


@pytest.mark.long
def test_no_grant_outlives_a_release_sent_on_its_own_connection() -> None:
    scope = Scope(releases=True, expiries=1)
    found = explored(scope, promises.no_grant_outlives_its_release, *TOKENS)
    assert found.holds, str(found)
    assert together(found, RELEASING, RELEASING)


# ---- extensions


def test_healing_revives_a_lock_released_without_a_floor() -> None:
    scope = Scope(attempts=(EXTENDING_A,), releases=True, expiries=0)
    found = explored(scope, *LEASES, rules=Rules(release_raises_floor=False))
    assert found.violation == promises.a_released_lock_never_regains_a_majority.__name__, str(found)


def test_healing_that_ignores_the_floor_revives_a_released_lock() -> None:
    scope = Scope(attempts=(EXTENDING_A,), releases=True, expiries=0)
    found = explored(scope, *LEASES, rules=Rules(heal=Heal.IF_ABSENT))
    assert found.violation == promises.a_released_lock_never_regains_a_majority.__name__, str(found)


@pytest.mark.parametrize("attempts", [(EXTENDING_A,), (EXTENDING_A, B)])
def test_healing_with_both_rules_never_revives_a_released_lock(
    attempts: tuple[Attempt, ...],
) -> None:
    expiries = None if len(attempts) == 1 else 0
    found = explored(Scope(attempts=attempts, releases=True, expiries=expiries), *LEASES)
    assert found.holds, str(found)
    assert together(found, *(RELEASING for _ in attempts))
    assert found.fired["heals"]


# ---- taking up a reservation


def test_copies_of_a_message_both_hold_if_they_supersede_anyone() -> None:
    scope = Scope(attempts=(RESERVATION, *COPIES), expiries=0)
    found = explored(
        scope, promises.one_holder_besides_the_reservation, rules=Rules(supersede=Supersede.ANYONE)
    )
    assert found.violation == promises.one_holder_besides_the_reservation.__name__, str(found)


@pytest.mark.parametrize("reservation", [RESERVATION, WITH_TOKEN])
@pytest.mark.parametrize("bystanders", [(), (C,)])
def test_of_two_copies_of_a_message_one_holds_at_a_time(
    reservation: Attempt, bystanders: tuple[Attempt, ...]
) -> None:
    scope = Scope(attempts=(reservation, *COPIES, *bystanders), expiries=0)
    found = explored(scope, promises.one_holder_besides_the_reservation, *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD, Phase.GRANTING)
    assert together(found, HELD, Phase.GRANTING, HELD)


@pytest.mark.long
def test_reservations_without_a_token_keep_tokens_in_order() -> None:
    found = explored(Scope(attempts=(A, RESERVATION, B), expiries=2), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD, Phase.GRANTING)
    assert together(found, HELD, Phase.GRANTING, HELD)


@pytest.mark.long
def test_a_reservation_without_a_token_revives_no_lease() -> None:
    scope = Scope(attempts=(EXTENDING_A, RESERVATION), releases=True, expiries=2)
    found = explored(scope, promises.no_grant_outlives_its_release, *LEASES)
    assert found.holds, str(found)
    assert together(found, RELEASING, RELEASING)
    assert found.fired["heals"]


def test_a_hand_over_that_ignores_the_floor_can_outlive_its_run() -> None:
    found = explored(
        Scope(attempts=HAND_OVER, releases=True, expiries=0),
        promises.no_hand_over_outlives_the_run_that_took_it_up,
        rules=Rules(hand_over_heeds_floor=False),
    )
    broken = promises.no_hand_over_outlives_the_run_that_took_it_up.__name__
    assert found.violation == broken, str(found)


@pytest.mark.long
def test_a_hand_over_that_heeds_the_floor_never_outlives_its_run() -> None:
    scope = Scope(attempts=HAND_OVER, releases=True, expiries=0)
    found = explored(scope, promises.no_hand_over_outlives_the_run_that_took_it_up, *TOKENS)
    assert found.holds, str(found)
    assert together(found, RELEASING, HELD, RELEASING)
    assert found.fired["is past"]


# ---- nodes that forget

SKEW = 2
WITHIN_SKEW_OF_EACH_OTHER = (-1, 1, 1)
WITHIN_SKEW_OF_TRUE_TIME = (-2, -2, 2)
ALL_OFFSETS = pytest.mark.parametrize(
    "offsets", [WITHIN_SKEW_OF_EACH_OTHER, WITHIN_SKEW_OF_TRUE_TIME]
)


def clocks(offsets: tuple[int, ...], guard: int) -> Clocks:
    """Return clocks with time enough for one guard to pass."""
    return Clocks(SKEW, offsets, guard, instants=(10, 10 + guard) if guard else (10,))


def uncertainty(offsets: tuple[int, ...]) -> int:
    """Return the spread of the clocks and the clamp's width: what a token may be off by."""
    return max(offsets) - min(offsets) + 2 * SKEW


def test_a_constant_proposal_and_a_forgetful_node_break_tokens() -> None:
    found = explored(Scope(forgetting=1), *TOKENS)
    assert found.violation == DUPLICATE, str(found)


def test_skewed_clocks_and_a_forgetful_node_break_the_order() -> None:
    """Without a restart guard."""
    scope = Scope(forgetting=1, expiries=0, clocks=clocks(WITHIN_SKEW_OF_EACH_OTHER, guard=0))
    found = explored(scope, promises.tokens_follow_real_time)
    assert found.violation == OUT_OF_ORDER, str(found)


@pytest.mark.long
@ALL_OFFSETS
def test_a_guard_as_long_as_a_token_may_be_off_is_too_short(offsets: tuple[int, ...]) -> None:
    guard = uncertainty(offsets)
    scope = Scope(forgetting=1, expiries=0, clocks=clocks(offsets, guard))
    found = explored(scope, *TOKENS)
    assert found.violation in {DUPLICATE, OUT_OF_ORDER}, str(found)


@pytest.mark.long
@ALL_OFFSETS
def test_with_a_longer_guard_a_node_may_forget(offsets: tuple[int, ...]) -> None:
    guard = uncertainty(offsets) + 1
    scope = Scope(forgetting=1, expiries=0, clocks=clocks(offsets, guard))
    found = explored(scope, *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)
    assert found.fired["forgets everything"]


# ---- nodes that an operator admits

ONE_HOLDER = promises.one_holder_at_a_time.__name__
ADMISSIONS = Scope(expiries=0, forgetting=1, admissions=True)


@pytest.mark.parametrize("admit", [Admit.AT_ANY_TIME, Admit.WITHOUT_LOCKS])
def test_an_admission_during_a_lease_or_attempt_breaks_exclusion(admit: Admit) -> None:
    found = explored(ADMISSIONS, promises.one_holder_at_a_time, rules=Rules(admit=admit))
    assert found.violation == ONE_HOLDER, str(found)


@pytest.mark.long
def test_a_node_admitted_while_nobody_holds_or_tries_is_safe() -> None:
    scope = replace(ADMISSIONS, attempts=(EXTENDING_A, B), releases=True)
    found = explored(scope, promises.one_holder_at_a_time)
    assert found.holds, str(found)
    assert together(found, RELEASING, HELD)
    assert found.fired["nodes are admitted"]
    assert found.fired["heals"]


def test_no_look_at_the_nodes_shows_what_a_quorum_forgot() -> None:
    found = explored(replace(ADMISSIONS, forgetting=2), promises.one_holder_at_a_time)
    assert found.violation == ONE_HOLDER, str(found)
