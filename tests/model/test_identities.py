"""What a process may take over of its parent's knowledge of a replaced server."""

from __future__ import annotations

import pytest

from .explorer import Exploration, explore
from .identities import Identities, Scope, Shared

BROKEN = "no_forgotten_lease"
BY_PARENT = "the child concludes by its parent"


def explored(scope: Scope) -> Exploration:
    return explore(Identities(scope))


@pytest.mark.parametrize("parent_knows", [True, False])
def test_the_parent_s_time_of_this_server_is_as_safe_as_its_own(parent_knows: bool) -> None:
    found = explored(Scope(Shared.TIME_OF_THIS_SERVER, parent_knows=parent_knows))
    assert found.holds, str(found)
    assert found.fired[BY_PARENT]
    assert found.landmarks[True]


def test_a_process_by_itself_is_safe() -> None:
    found = explored(Scope(Shared.NOTHING))
    assert found.holds, str(found)
    assert not found.fired[BY_PARENT]


@pytest.mark.parametrize(
    "shared", [Shared.SERVER_WITHOUT_TIME, Shared.TIME_OF_ANY_SERVER, Shared.HALF_A_RECORD]
)
def test_less_than_a_server_with_its_time_lets_leases_be_forgotten(shared: Shared) -> None:
    found = explored(Scope(shared))
    assert found.violation == BROKEN, str(found)


def test_the_parent_s_first_server_is_not_the_child_s() -> None:
    """The parent did not see that it replaced another one: so it has no time of that."""
    found = explored(Scope(Shared.TIME_OF_A_REPLACEMENT, parent_knows=False))
    assert found.violation == BROKEN, str(found)


@pytest.mark.parametrize("shared", [Shared.NOTHING, Shared.TIME_OF_THIS_SERVER])
def test_a_server_that_comes_back_is_not_recognised(shared: Shared) -> None:
    """An assumption of the guard, with or without a parent: so docs/how-to forbids it."""
    found = explored(Scope(shared, comes_back=True))
    assert found.violation == BROKEN, str(found)
