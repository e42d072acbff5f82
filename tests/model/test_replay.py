"""A replay follows each way in which what was seen may have come about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .replay import Message, Seen, Sent, Stored, Taken, Told, differences
from .state import CONFIRM, GRANT

NODES = range(5)


def granted(owner: str, tokens: Mapping[int, int], floors: Mapping[int, int]) -> list[Seen]:
    """Return an attempt's grants: each node's token, and its floor before; no lock is left."""
    message = Message(GRANT, "k", owner)
    return [
        Sent(message, frozenset(NODES)),
        *(
            Taken(message, node, Stored("", floors.get(node, 0)), Stored(owner, token))
            for node, token in tokens.items()
        ),
    ]


def asks_to_confirm(owner: str, token: int, nodes: Iterable[int]) -> Sent:
    """Return an attempt's CONFIRM."""
    return Sent(Message(CONFIRM, "k", owner, token), frozenset(nodes))


def confirmed(owner: str, token: int, node: int, floor: int) -> Taken:
    """Return a node's confirmation, whose floor was lower."""
    message = Message(CONFIRM, "k", owner, token)
    return Taken(message, node, Stored(owner, floor), Stored(owner, token))


def test_all_grants_that_a_confirm_may_rest_on_are_tried() -> None:
    # That of nodes 1 and 3 follows from the grants of 1, 2, 3, and of 0, 1, 2, 3, too. Only the
    # latter has a majority with the confirmation of node 1.
    seen = [
        *granted("A", {0: 7, 1: 5, 2: 7, 3: 5}, {}),
        asks_to_confirm("A", 7, {1, 3}),
        confirmed("A", 7, 1, 5),
        Told("acquired", "k", "A", 7),
    ]
    assert differences(len(NODES), seen) == []


def test_a_confirm_that_rests_on_no_majority_differs() -> None:
    seen = [
        *granted("A", {1: 5, 2: 7, 3: 5}, {}),
        asks_to_confirm("A", 7, {1, 3}),
        confirmed("A", 7, 1, 5),
        Told("acquired", "k", "A", 7),
    ]
    [found] = differences(len(NODES), seen)
    assert "no majority has confirmed it" in found


def test_states_of_attempts_that_went_silent_are_few() -> None:
    # Each asks for confirmations that several sets of grants explain, and dies; its lock expires.
    seen: list[Seen] = []
    tokens: dict[int, int] = {}
    for number in range(40):
        low, high = 10 * number + 5, 10 * number + 7
        floors, tokens = tokens, {0: high, 1: low, 2: high, 3: low, 4: high}
        seen += granted(f"owner {number}", tokens, floors)
        seen.append(asks_to_confirm(f"owner {number}", high, {1, 3}))
    assert differences(len(NODES), seen) == []
