"""What one node does with one message: the model's counterpart of the Lua scripts, each atomic."""

from __future__ import annotations

from collections.abc import Iterable

from .state import FREE, GONE, NO_TOKEN, Client, Node, Phase
from .variants import Confirm, Heal, Lost, Rules, Scope, Supersede, Vote

TOKENS_PER_TICK = 16
"""More than the grants of any scope: counting up from a floor never reaches the next tick."""

EXTREME_PROPOSALS = (0, 1_000_000)
"""P of a client whose clock is behind every node's clamp, and of one that is ahead of them."""

Answer = tuple[str, int, int, int]
"""What the node did (a verb), its owner and its floor after that, and its reply (0: none)."""


def proposed_tokens(node: Node, client: Client, now: int, scope: Scope) -> Iterable[int]:
    """Return every token that a grant may get here and now."""
    clocks = scope.clocks
    if clocks is None:
        return range(node.floor + 1, node.floor + 1 + scope.leap)
    earliest = (now + node.offset - clocks.max_skew) * TOKENS_PER_TICK
    latest = (now + node.offset + clocks.max_skew) * TOKENS_PER_TICK
    return (max(node.floor + 1, min(max(client.proposal, earliest), latest)),)


def grant(
    node: Node,
    owner: int,
    superseded: int | None,
    highest_floor: int | None,
    rules: Rules,
    tokens: Iterable[int],
) -> Iterable[Answer]:
    """GRANT: one answer for every token that it may get, or the one that gives it none."""
    if node.owner == owner:
        granted = NO_TOKEN if NO_TOKEN in tokens else node.floor
        return (("grants again", owner, node.floor, granted),)
    if highest_floor is not None and node.floor > highest_floor:
        return (("is past", node.owner, node.floor, 0),)
    replaces = superseded is not None and (
        rules.supersede is Supersede.ANYONE or node.owner == superseded
    )
    if node.owner == FREE or replaces:
        return [("grants", owner, max(node.floor, token), token) for token in tokens]
    return (("is busy for", node.owner, node.floor, 0),)


def confirm(node: Node, owner: int, token: int, rules: Rules) -> Answer:
    """CONFIRM."""
    if rules.confirm is Confirm.UNCONDITIONALLY:
        return "confirms", node.owner, max(node.floor, token), token
    if node.owner == owner and (node.floor <= token or rules.confirm is Confirm.IF_OWNER):
        return "confirms", owner, token, token
    return "does not confirm", node.owner, node.floor, 0


def extend(node: Node, owner: int, token: int, rules: Rules) -> Answer:
    """EXTEND: the expiry itself is not modelled, since any lock may expire at any instant."""
    is_mine, is_absent, is_raised = node.owner == owner, node.owner == FREE, node.floor > token
    if is_mine and (not is_raised or rules.vote is Vote.IF_OWNER):
        return "extends", owner, max(node.floor, token), token
    if is_absent and (not is_raised or rules.heal is Heal.IF_ABSENT):
        return "heals", owner, max(node.floor, token), 0
    is_gone = is_raised or rules.lost is Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS
    return "does not extend", node.owner, node.floor, GONE if is_gone else 0


def release(node: Node, owner: int, superseded: int | None, client: Client, rules: Rules) -> Answer:
    """RELEASE: that of a lease raises the floor and frees what it superseded, too.

    That of a failed attempt has no token for it, and leaves what it would have superseded.
    A reservation may have none, either.
    """
    is_lease = client.phase is Phase.RELEASING
    frees = node.owner == owner or (is_lease and node.owner == superseded)
    left = FREE if frees else node.owner
    raises = rules.release_raises_floor and is_lease and client.token
    return "releases", left, max(node.floor, client.token + 1) if raises else node.floor, 0
