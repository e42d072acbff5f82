"""The sound protocol in larger worlds, each for seconds to minutes: `make exhaustive`."""

from __future__ import annotations

import pytest

from . import promises
from .state import Phase
from .variants import Attempt, Clocks, Scope
from .verdicts import (
    COPIES,
    EXTENDING_A,
    EXTENDING_B,
    HAND_OVER,
    LEASES,
    RESERVATION,
    RETRIES,
    TOKENS,
    A,
    B,
    C,
    explored,
    together,
)

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]
HELD, RELEASING, FAILED = Phase.HELD, Phase.RELEASING, Phase.FAILED


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param(Scope(duplicates=2), id="two duplicated grants"),
        pytest.param(Scope(duplicates=1, leap=2), id="a duplicated grant and leaping tokens"),
        pytest.param(Scope(nodes=5), id="five nodes"),
    ],
)
def test_two_clients_hold(scope: Scope) -> None:
    found = explored(scope, *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)


def test_three_clients_hold_whatever_expires() -> None:
    found = explored(Scope(attempts=(A, B, C)), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD, HELD)


def test_two_attempts_each_hold() -> None:
    found = explored(Scope(attempts=RETRIES, expiries=3), *TOKENS)
    assert found.holds, str(found)
    assert together(found, FAILED, FAILED, HELD, HELD)


@pytest.mark.parametrize("same_owner_as", [None, 0])
def test_a_retry_and_a_duplicated_grant_hold(same_owner_as: int | None) -> None:
    """Also under an owner used again: the floor test in CONFIRM makes up for that."""
    retry = Attempt("a", retry_of=0, same_owner_as=same_owner_as)
    found = explored(Scope(attempts=(A, B, retry), duplicates=1, expiries=2), *TOKENS)
    assert found.holds, str(found)
    assert together(found, FAILED, HELD, HELD)


def test_releases_among_leaping_tokens_hold() -> None:
    scope = Scope(leap=2, releases=True, expiries=2)
    found = explored(scope, promises.no_grant_outlives_its_release, *TOKENS)
    assert found.holds, str(found)
    assert together(found, RELEASING, RELEASING)


@pytest.mark.parametrize(
    ("attempts", "expiries"), [((EXTENDING_A, EXTENDING_B), 2), ((EXTENDING_A, B), 3)]
)
def test_clients_that_extend_and_release_hold(attempts: tuple[Attempt, ...], expiries: int) -> None:
    found = explored(Scope(attempts=attempts, releases=True, expiries=expiries), *LEASES)
    assert found.holds, str(found)
    assert together(found, RELEASING, RELEASING)
    assert together(found, Phase.LOST, HELD)
    assert found.fired["heals"]


def test_reservations_without_a_token_keep_tokens_in_order() -> None:
    found = explored(Scope(attempts=(A, RESERVATION, B), duplicates=1), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD, HELD)


def test_a_reservation_without_a_token_revives_no_lease() -> None:
    scope = Scope(attempts=(EXTENDING_A, RESERVATION, B), releases=True, expiries=0)
    found = explored(scope, promises.no_grant_outlives_its_release, *LEASES)
    assert found.holds, str(found)
    assert together(found, RELEASING, RELEASING, RELEASING)
    assert found.fired["heals"]


def test_of_two_copies_that_release_one_holds_at_a_time() -> None:
    scope = Scope(attempts=(RESERVATION, *COPIES), releases=True, expiries=0)
    found = explored(scope, promises.one_holder_besides_the_reservation, *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, RELEASING, RELEASING)


def test_no_hand_over_outlives_its_run_if_a_lock_expires() -> None:
    scope = Scope(attempts=HAND_OVER, releases=True, expiries=1)
    found = explored(scope, promises.no_hand_over_outlives_the_run_that_took_it_up, *TOKENS)
    assert found.holds, str(found)
    assert together(found, RELEASING, HELD, RELEASING)


def test_a_node_may_forget_twice() -> None:
    clocks = Clocks(2, (-1, 1, 1), guard=7, instants=(10, 17, 24))
    found = explored(Scope(forgetting=2, expiries=0, clocks=clocks), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)


@pytest.mark.parametrize("offsets", [(-1, 0, 1), (-1, 1, 1)])
def test_a_node_may_forget_while_time_passes(offsets: tuple[int, ...]) -> None:
    clocks = Clocks(2, offsets, guard=7, instants=(10, 13, 17))
    found = explored(Scope(forgetting=1, expiries=1, clocks=clocks), *TOKENS)
    assert found.holds, str(found)
    assert together(found, HELD, HELD)
