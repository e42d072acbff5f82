"""Release of a lease by others: which token keeps it from coming back, and spares the next lease.

Not in the table: to the nodes it is an ordinary release. The question is which floors it counts.
"""

from __future__ import annotations

import pytest

from . import promises
from .state import Phase
from .variants import Attempt, Drop, Rules, Scope
from .verdicts import EXTENDING_A, RESERVATION, A, B, explored, together

D = Attempt("D", drops=0)
STAYS_DROPPED = promises.a_dropped_lease_is_never_backed_again
SPARES = promises.a_drop_ends_no_lease_that_came_after
AMONG_LEASES = Scope(attempts=(A, B, D), expiries=2)


def test_a_token_below_the_floors_lets_a_lease_come_back() -> None:
    """As with one from a clock that is behind: the next extension succeeds."""
    found = explored(
        Scope(attempts=(EXTENDING_A, D), expiries=0), STAYS_DROPPED, rules=Rules(drop=Drop.BY_CLOCK)
    )
    assert found.violation == STAYS_DROPPED.__name__, str(found)


def test_floors_without_a_majority_let_a_lease_come_back() -> None:
    """Where only a minority names the owner, its token may be higher on a node not heard."""
    scope = Scope(attempts=(EXTENDING_A, RESERVATION, D), leap=2, expiries=1)
    found = explored(scope, STAYS_DROPPED, rules=Rules(drop=Drop.WITHOUT_MAJORITY))
    assert found.violation == STAYS_DROPPED.__name__, str(found)


@pytest.mark.long
def test_a_dropped_lease_that_a_majority_names_stays_so() -> None:
    found = explored(Scope(attempts=(EXTENDING_A, D), leap=2), STAYS_DROPPED)
    assert found.holds, str(found)
    assert found.fired["drops"]
    assert found.fired["heals"]
    found = explored(Scope(attempts=(EXTENDING_A, B, D), expiries=1), STAYS_DROPPED)
    assert found.holds, str(found)


def test_the_floor_of_any_node_ends_the_lease_that_comes_after() -> None:
    found = explored(AMONG_LEASES, SPARES, rules=Rules(drop=Drop.ALL_FLOORS))
    assert found.violation == SPARES.__name__, str(found)


def test_a_drop_spares_the_lease_that_comes_after() -> None:
    """But not if a node granted the dropped lease late, above its token: with a leap of 2."""
    found = explored(AMONG_LEASES, SPARES)
    assert found.holds, str(found)
    assert together(found, Phase.HELD, Phase.HELD, Phase.RELEASING)
