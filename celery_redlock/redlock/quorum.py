"""What the replies so far make certain. Pure functions: no I/O, no clock.

A round asks every node the same thing. `replies` is one entry a node: None while it has not
answered, else what it said. Each verdict is given as early as it is certain, and never changes
when later replies come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

DRIFT_FACTOR = 0.01
"""Clock rates may differ by this much. Source: redis.io, "Distributed locks with Redis"."""
DRIFT_FLOOR_MS = 2.0
"""And by this, for the granularity of expiry. Source: the same page's reference libraries."""


class Granted(NamedTuple):
    """The node set our key; `token` is what its floor now is.

    `took_over` says that it stood there under the owner that this attempt supersedes.
    """

    token: int
    took_over: bool = False


class Busy(NamedTuple):
    """The node holds the key for somebody else.

    Or it has served somebody else since, which ends a hand-over, or was freed while it was asked;
    then `holder` may be '': nobody.
    """

    holder: str
    remaining_ms: int
    floor: int


class Done(NamedTuple):
    """The node has a done mark for this task: it ran to its end before."""

    remaining_ms: int


class Failed(NamedTuple):
    """The node did not answer in time, or answered with an error, or may not vote."""

    error: str


class Extended(NamedTuple):
    """The node held our key and renewed it."""


class Healed(NamedTuple):
    """The node had no key and took ours on again: it counts from the next extension on."""


class Superseded(NamedTuple):
    """The node has given a higher token to somebody else since: it will never take us back."""


class Occupied(NamedTuple):
    """The node has somebody else's key, under no higher token: a late grant. It may expire."""


GrantReply = Granted | Busy | Done | Failed
ExtendReply = Extended | Healed | Superseded | Occupied | Failed


class Acknowledged(NamedTuple):
    """The node did what it was told; of a release, whether the key was ours until then."""

    was_ours: bool = True


class Declined(NamedTuple):
    """The node's lock was not ours any more."""


AckReply = Acknowledged | Declined | Failed


class Verdict(Enum):
    """How an attempt or an extension stands."""

    PENDING = "pending"
    WON = "won"
    HELD = "held"
    CONTENDED = "contended"
    UNAVAILABLE = "unavailable"
    DONE = "done"
    LOST = "lost"


def majority(nodes: int) -> int:
    """Return the quorum of `nodes` nodes: any two quorums share a node."""
    return nodes // 2 + 1


def drift_ms(ttl_ms: float) -> float:
    """Return the allowance for clocks that run at different rates, in ms.

    Source: redis.io, "Distributed locks with Redis", the Redlock algorithm.
    """
    return ttl_ms * DRIFT_FACTOR + DRIFT_FLOOR_MS


def validity_ms(ttl_ms: float, elapsed_ms: float) -> float:
    """Return how long a fresh lease may be trusted, in ms; <= 0 means not acquired.

    Args:
        ttl_ms: Expiry set on every node, > 0.
        elapsed_ms: Time since before the first node was asked, on the boot-time clock.

    Source: redis.io, "Distributed locks with Redis", the Redlock algorithm, step 4.
    """
    return ttl_ms - elapsed_ms - drift_ms(ttl_ms)


def guard_s(max_ttl: float, max_clock_skew: float) -> float:
    """Return for how long after its start a node must not vote, in seconds.

    It may have forgotten a lock that was granted just before it stopped, or a token that was ahead
    of the clocks: for each of these it waits out the longer, and two steps of its own clock. One
    second more, because `uptime_in_seconds` is the difference of two truncated seconds and can be
    that much ahead.

    Source: redis.io, "Distributed locks with Redis", the section on delayed restarts; that
    `max_ttl` may not be too short for the clocks was found by exploring the model.
    """
    return max(max_ttl * (1 + DRIFT_FACTOR), 2 * max_clock_skew) + 2 * max_clock_skew + 1.0


def grant_verdict(replies: Sequence[GrantReply | None]) -> Verdict:
    """Return how an attempt stands: WON, HELD, CONTENDED, UNAVAILABLE, DONE, or PENDING.

    HELD: one holder is known to have a majority.
    CONTENDED: neither we nor, as far as the answers tell, anybody else has one, and enough nodes
    answer: ask again.
    """
    nodes = len(replies)
    quorum = majority(nodes)
    kinds = list(map(type, replies))
    if Done in kinds:
        return Verdict.DONE
    granted, pending = kinds.count(Granted), kinds.count(type(None))
    if granted >= quorum:
        return Verdict.WON
    if granted + pending >= quorum:
        return Verdict.PENDING
    holders = [reply.holder for reply in replies if isinstance(reply, Busy) and reply.holder]
    most = max(map(holders.count, holders), default=0)
    return _why_refused(most, kinds.count(Failed), pending, nodes)


def _why_refused(most: int, failed: int, pending: int, nodes: int) -> Verdict:
    """Return why no majority can be had: `most` nodes name one holder, `failed` said nothing."""
    quorum = majority(nodes)
    if most >= quorum:
        return Verdict.HELD
    if failed > nodes - quorum:
        return Verdict.UNAVAILABLE
    if most + pending >= quorum or failed + pending > nodes - quorum:
        return Verdict.PENDING
    return Verdict.CONTENDED


def leading_holder(replies: Iterable[GrantReply | None]) -> Busy | None:
    """Return the Busy reply of the holder with the most nodes, its longest remaining time.

    None: no node names one.
    """
    votes: dict[str, list[Busy]] = {}
    for reply in replies:
        if isinstance(reply, Busy) and reply.holder:
            votes.setdefault(reply.holder, []).append(reply)
    if not votes:
        return None
    leader = max(votes.values(), key=len)
    return max(leader, key=lambda busy: busy.remaining_ms)


def without_majority(replies: Sequence[GrantReply | None]) -> dict[int, Busy]:
    """Return, by node, what those said that hold the lock for somebody who can't have a majority.

    Whoever is not heard of counts for the holder.
    """
    if Busy not in map(type, replies):
        return {}
    busy = {index: reply for index, reply in enumerate(replies) if isinstance(reply, Busy)}
    holders = [reply.holder for reply in busy.values()]
    unheard = sum(reply is None or isinstance(reply, Failed) for reply in replies)
    return {
        index: reply
        for index, reply in busy.items()
        if holders.count(reply.holder) + unheard < majority(len(replies))
    }


def chosen_token(replies: Iterable[GrantReply | None]) -> tuple[int, int]:
    """Return the token of a won attempt, the largest that a counted node granted.

    And how many nodes have it as their floor already: those that granted just it.
    """
    tokens = [reply.token for reply in replies if isinstance(reply, Granted)]
    token = max(tokens)
    return token, tokens.count(token)


def unconfirmed(replies: Sequence[GrantReply | None], token: int) -> list[int]:
    """Return which granting nodes have not got `token` as their floor yet."""
    return [
        index
        for index, reply in enumerate(replies)
        if isinstance(reply, Granted) and reply.token != token
    ]


def acknowledged(replies: Iterable[AckReply | None]) -> int:
    """Return how many nodes did what they were told."""
    return sum(isinstance(reply, Acknowledged) for reply in replies)


def confirm_verdict(replies: Sequence[AckReply | None], already: int) -> Verdict:
    """Return WON when a majority has the token; UNAVAILABLE when none can; else PENDING.

    Args:
        replies: One entry a node; those not asked count as Failed.
        already: Nodes that granted just this token, not asked again.
    """
    quorum = majority(len(replies))
    confirmed = already
    pending = 0
    for reply in replies:
        if reply is None:
            pending += 1
        elif isinstance(reply, Acknowledged):
            confirmed += 1
    if confirmed >= quorum:
        return Verdict.WON
    if confirmed + pending < quorum:
        return Verdict.UNAVAILABLE
    return Verdict.PENDING


def extend_verdict(replies: Sequence[ExtendReply | None]) -> Verdict:
    """Return how an extension stands.

    WON: a majority renewed. LOST: so many have moved on that none ever can. UNAVAILABLE: this
    round can't win, a later one may. Else PENDING.

    A healed node does not count: an extension must not revive the lock it extends. A minority
    that moved on does not end the lease: any refused attempt of somebody else leaves a higher
    floor on a node that lacked our key.
    """
    quorum = majority(len(replies))
    extended = superseded = pending = 0
    for reply in replies:
        if reply is None:
            pending += 1
        elif isinstance(reply, Extended):
            extended += 1
        elif isinstance(reply, Superseded):
            superseded += 1
    if extended >= quorum:
        return Verdict.WON
    if superseded > len(replies) - quorum:
        return Verdict.LOST
    if extended + pending >= quorum or superseded + pending > len(replies) - quorum:
        return Verdict.PENDING
    return Verdict.UNAVAILABLE
