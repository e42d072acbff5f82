"""The model checker itself: a search that can't fail proves nothing."""

from __future__ import annotations

from collections.abc import Iterable

from . import promises
from .explorer import Step, explore
from .protocol import LockProtocol
from .state import State
from .variants import Confirm, Rules, Scope
from .verdicts import TOKENS

Jugs = tuple[int, int]


class TwoJugs:
    """The puzzle: jugs of 3 and 5 litres, a tap, a drain, and a volume never to be measured."""

    def __init__(self, unwanted: int) -> None:
        self.unwanted = unwanted

    def initial(self) -> Jugs:
        return 0, 0

    def successors(self, state: Jugs) -> Iterable[tuple[Step, Jugs]]:
        small, big = state
        yield ("fill", 0, -1), (3, big)
        yield ("fill", 1, -1), (small, 5)
        yield ("empty", 0, -1), (0, big)
        yield ("empty", 1, -1), (small, 0)
        poured = min(small, 5 - big)
        yield ("pour", 0, 1), (small - poured, big + poured)
        poured = min(big, 3 - small)
        yield ("pour", 1, 0), (small + poured, big - poured)

    def canonical(self, state: Jugs) -> Jugs:
        return state

    def broken_promise(self, state: Jugs) -> str | None:
        return "measured" if self.unwanted in state else None

    def landmark(self, state: Jugs) -> int:
        return sum(state)

    def describe(self, step: Step, after: Jugs) -> str:
        return f"{step[0]} -> {after}"


class Unsorted(LockProtocol):
    """The protocol without the symmetry of its nodes."""

    def canonical(self, state: State) -> State:
        return state


def test_the_shortest_counter_example_is_found() -> None:
    found = explore(TwoJugs(unwanted=4))
    assert found.violation == "measured"
    assert len(found.trace) == 6
    assert found.trace[-1] == "pour -> (3, 4)"
    assert not found.holds


def test_a_search_without_a_violation_sees_every_state() -> None:
    found = explore(TwoJugs(unwanted=6))
    assert found.holds
    assert found.states == sum(found.landmarks.values()) == 16


def test_a_truncated_search_does_not_hold() -> None:
    found = explore(TwoJugs(unwanted=6), max_states=15)
    assert found.violation is None
    assert not found.holds


def test_a_broken_start_is_seen() -> None:
    found = explore(TwoJugs(unwanted=0))
    assert found.violation == "measured"
    assert found.trace == ()


def test_sorting_the_nodes_hides_nothing() -> None:
    scope = Scope(expiries=1)
    sorted_, unsorted = (
        explore(LockProtocol(Rules(), scope, TOKENS)),
        explore(Unsorted(Rules(), scope, TOKENS)),
    )
    assert sorted_.holds
    assert unsorted.holds
    assert set(sorted_.landmarks) == set(unsorted.landmarks)
    assert sorted_.states < unsorted.states <= 6 * sorted_.states


def test_sorting_the_nodes_makes_no_counter_example_longer() -> None:
    rules, scope = Rules(confirm=Confirm.NEVER_ASKED), Scope()
    sorted_, unsorted = (explore(kind(rules, scope, TOKENS)) for kind in (LockProtocol, Unsorted))
    assert sorted_.violation == promises.completed_acquisitions_have_distinct_tokens.__name__
    assert sorted_.violation == unsorted.violation
    assert len(sorted_.trace) == len(unsorted.trace)
