"""When an extension succeeds, and when it says that its lease is lost.

Not in the table, yet of the same kind: rules that look harmless, tried against everything that may
happen.
"""

from __future__ import annotations

import pytest

from . import promises
from .state import Phase
from .variants import Lost, Rules, Scope, Vote
from .verdicts import EXTENDING_A, LEASES, B, explored, together

HASTY = promises.only_a_lost_lease_is_told_so.__name__


def test_counting_nodes_above_the_token_renews_overtaken_leases() -> None:
    """An extension that counts nodes with a higher floor can succeed once it is overtaken."""
    found = explored(Scope(attempts=(EXTENDING_A, B)), *LEASES, rules=Rules(vote=Vote.IF_OWNER))
    assert found.violation == promises.no_extension_succeeds_once_overtaken.__name__, str(found)


def test_one_raised_floor_is_no_reason_to_call_a_lease_lost() -> None:
    """The holder's own late grant raises it, or a contender whom the majority refused."""
    scope = Scope(attempts=(EXTENDING_A, B), leap=2, expiries=0)
    found = explored(scope, *LEASES, rules=Rules(lost=Lost.ONE_RAISED_FLOOR))
    assert found.violation == HASTY, str(found)


@pytest.mark.long
def test_a_key_of_another_owner_does_not_prove_a_lease_lost() -> None:
    """It may expire under a floor that lets the holder back in."""
    scope = Scope(attempts=(EXTENDING_A, B), leap=2, expiries=2)
    rules = Rules(lost=Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS)
    found = explored(scope, *LEASES, rules=rules)
    assert found.violation == HASTY, str(found)


@pytest.mark.long
def test_a_majority_of_raised_floors_proves_a_lease_lost() -> None:
    found = explored(Scope(attempts=(EXTENDING_A, B), leap=2, expiries=2), *LEASES)
    assert found.holds, str(found)
    assert together(found, Phase.LOST, Phase.HELD)
    assert found.fired["heals"]


def test_an_extension_that_heals_and_one_that_is_overtaken_hold() -> None:
    found = explored(Scope(attempts=(EXTENDING_A, B), expiries=2), *LEASES)
    assert found.holds, str(found)
    assert together(found, Phase.EXTENDED, Phase.HELD)
    assert found.fired["heals"]
