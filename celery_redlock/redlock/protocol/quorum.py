"""Verdicts over the replies so far. Pure functions: no I/O, no clock.

A round sends every node the same request. `replies` has one entry per node: its reply, or None
while it has not answered. A verdict is given as soon as it is certain, and later replies never
change it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum

from .replies import (
    Acknowledged,
    AckReply,
    Busy,
    Done,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Superseded,
)

DRIFT_FACTOR = 0.01
"""Clock rates may differ by this much. Source: redis.io, "Distributed locks with Redis"."""
DRIFT_FLOOR_MS = 2.0
"""And by this, for the granularity of expiry. Source: the same page's reference libraries."""


_NO_REPLY = type(None)


class Verdict(Enum):
    """State of an attempt or an extension, by the replies so far."""

    PENDING = "pending"
    REACHED = "reached"
    HELD = "held"
    CONTENDED = "contended"
    UNAVAILABLE = "unavailable"
    DONE = "done"
    LOST = "lost"


def majority(nodes: int) -> int:
    """Return the quorum of `nodes` nodes: any two quorums share a node."""
    return nodes // 2 + 1


def has_majority_replied(replies: Sequence[object]) -> bool:
    """Return whether a majority of the nodes has replied, be it with a failure."""
    return len(replies) - list(replies).count(None) >= majority(len(replies))


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
    """Return the time after its start during which a node must not vote, in seconds.

    The node may have forgotten a lock that was granted just before it stopped, or a token that was
    ahead of the clocks. It waits for the longer of the two, plus two steps of its own clock, plus
    one second: `uptime_in_seconds` is a difference of two truncated seconds and can be that much
    ahead.

    Source: redis.io, "Distributed locks with Redis", the section on delayed restarts; that
    `max_ttl` may not be too short for the clocks was found by exploring the model.
    """
    return max(max_ttl * (1 + DRIFT_FACTOR), 2 * max_clock_skew) + 2 * max_clock_skew + 1.0


def grant_verdict(replies: Sequence[GrantReply | None]) -> Verdict:
    """Return the state of an attempt: REACHED, HELD, CONTENDED, UNAVAILABLE, DONE, or PENDING.

    HELD: one holder is known to have a majority.
    CONTENDED: enough nodes answer, but no owner is known to have a majority: retry.
    """
    nodes = len(replies)
    quorum = nodes // 2 + 1
    kinds = list(map(type, replies))
    if Done in kinds:
        return Verdict.DONE
    granted = kinds.count(Granted)
    if granted >= quorum:
        return Verdict.REACHED
    pending = kinds.count(_NO_REPLY)
    if granted + pending >= quorum:
        return Verdict.PENDING
    holders = [reply.holder for reply in replies if isinstance(reply, Busy) and reply.holder]
    most = max(map(holders.count, holders), default=0)
    return _why_refused(most, kinds.count(Failed), pending, nodes)


def _why_refused(most: int, failed: int, pending: int, nodes: int) -> Verdict:
    """Return the reason for no majority: `most` nodes name one holder, `failed` did not answer."""
    quorum = majority(nodes)
    if most >= quorum:
        return Verdict.HELD
    if failed > nodes - quorum:
        return Verdict.UNAVAILABLE
    if most + pending >= quorum or failed + pending > nodes - quorum:
        return Verdict.PENDING
    return Verdict.CONTENDED


def leading_holder(replies: Iterable[GrantReply | None]) -> Busy | None:
    """Return the Busy reply with the longest remaining time of the holder with the most nodes.

    None: no node names a holder.
    """
    votes: dict[str, list[Busy]] = {}
    for reply in replies:
        if isinstance(reply, Busy) and reply.holder:
            votes.setdefault(reply.holder, []).append(reply)
    if not votes:
        return None
    leader = max(votes.values(), key=len)
    return max(leader, key=lambda busy: busy.remaining_ms)


def holder_age_s(
    replies: Iterable[GrantReply | None], holder: str, max_skew_us: int
) -> float | None:
    """Return how long ago `holder` was granted the lock, in seconds; None: unknown.

    On the nodes' clocks, so the caller's does not matter. A token is at most `max_skew_us` off the
    clock of the node that granted it. If it is further ahead, a node's clock was wrong, and the age
    is unknown. Of different ages the largest counts: a node whose clock is behind, or that has the
    token of one whose clock is ahead, tells too small a one.
    """
    ages = [
        reply.age_us
        for reply in replies
        if isinstance(reply, Busy) and reply.holder == holder and reply.age_us is not None
    ]
    age_us = max(ages, default=None)
    return None if age_us is None or age_us < -max_skew_us else max(0, age_us) / 1e6


def without_majority(replies: Sequence[GrantReply | None]) -> dict[int, Busy]:
    """Return, by node, the Busy replies whose holder can't have a majority.

    A node that has not answered counts for the holder.
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


def look_verdict(replies: Sequence[GrantReply | None], owner: str) -> Verdict:
    """Return how an attempt that may replace `owner` would fare, by replies to a look.

    REACHED: it may succeed, since a majority of the nodes is free or held by `owner`. HELD,
    CONTENDED, UNAVAILABLE, DONE: it would fail, for the reason that `grant_verdict` would give.
    Else PENDING.
    """
    nodes, quorum = len(replies), majority(len(replies))
    kinds = list(map(type, replies))
    if Done in kinds:
        return Verdict.DONE
    holders = [reply.holder for reply in replies if isinstance(reply, Busy)]
    others = [holder for holder in holders if holder not in ("", owner)]
    wins, pending = len(holders) - len(others), kinds.count(_NO_REPLY)
    if wins >= quorum:
        return Verdict.REACHED
    if wins + pending >= quorum:
        return Verdict.PENDING
    most = max(map(others.count, others), default=0)
    return _why_refused(most, kinds.count(Failed), pending, nodes)


def highest_floor(replies: Iterable[GrantReply | None]) -> int:
    """Return the highest floor that any node is known to have; 0: none is known."""
    highest = 0
    for reply in set(replies):  # nodes mostly reply alike
        if isinstance(reply, Granted):
            highest = max(highest, reply.token)
        elif isinstance(reply, Busy):
            highest = max(highest, reply.floor)
    return highest


def floor_under(replies: Sequence[GrantReply | None], owner: str) -> int:
    """Return the highest floor of the nodes where `owner` has the lock; 0: no floor.

    If they are no majority, the nodes where nobody has it count as well: all that have confirmed
    the token may have lost the lock.

    The floor of a node that names another owner is that owner's token, maybe, and that of a free
    node may be of an attempt that was refused. With floors raised above it, the lease of an owner
    that comes meanwhile would be lost.
    """
    seen = [reply for reply in replies if isinstance(reply, Busy)]
    floors = [reply.floor for reply in seen if reply.holder == owner]
    if len(floors) < majority(len(replies)):
        floors += [reply.floor for reply in seen if not reply.holder]
    return max(floors, default=0)


def chosen_token(replies: Iterable[GrantReply | None]) -> tuple[int, int]:
    """Return the token of a won attempt, and how many nodes have it as their floor already.

    The token is the largest that was granted; the nodes that granted it have it as their floor.
    """
    tokens = [reply.token for reply in replies if isinstance(reply, Granted)]
    token = max(tokens)
    return token, tokens.count(token)


def unconfirmed(replies: Sequence[GrantReply | None], token: int) -> list[int]:
    """Return the nodes that granted a smaller token: `token` is not their floor yet."""
    return [
        index
        for index, reply in enumerate(replies)
        if isinstance(reply, Granted) and reply.token != token
    ]


def acknowledged(replies: Iterable[AckReply | None]) -> int:
    """Return how many nodes did as requested."""
    return list(map(type, replies)).count(Acknowledged)


def confirm_verdict(replies: Sequence[AckReply | None], already: int) -> Verdict:
    """Return REACHED if a majority has the token, UNAVAILABLE if none can get it, else PENDING.

    Args:
        replies: One entry per node; nodes that were not asked count as Failed.
        already: Number of nodes that granted this token and were not asked again.
    """
    quorum = len(replies) // 2 + 1
    kinds = list(map(type, replies))
    confirmed = already + kinds.count(Acknowledged)
    if confirmed >= quorum:
        return Verdict.REACHED
    if confirmed + kinds.count(_NO_REPLY) < quorum:
        return Verdict.UNAVAILABLE
    return Verdict.PENDING


def release_verdict(replies: Sequence[AckReply | None]) -> Verdict:
    """Return the state of a release, and whether its lease was lost before.

    LOST: a majority has released it, and had not had the lock key any more. REACHED: a majority has
    released it. UNAVAILABLE: none can. Else PENDING, also if a majority has released it and the
    missing replies may show the loss: the nodes that still had the lock key may be the faster ones.
    """
    quorum = majority(len(replies))
    released = gone = pending = 0
    for reply in replies:
        if reply is None:
            pending += 1
        elif isinstance(reply, Acknowledged):
            released += 1
            gone += not reply.was_ours
    if gone >= quorum:
        return Verdict.LOST
    if gone + pending >= quorum:
        return Verdict.PENDING
    if released >= quorum:
        return Verdict.REACHED
    return Verdict.PENDING if released + pending >= quorum else Verdict.UNAVAILABLE


def extend_verdict(replies: Sequence[ExtendReply | None], guarded: Container[int] = ()) -> Verdict:
    """Return the state of an extension.

    Args:
        replies: One entry per node.
        guarded: Nodes that were inside their restart guard when they were asked.

    REACHED: a majority renewed the lease. LOST: so many nodes are superseded that no majority is
    left. UNAVAILABLE: this round can't reach a majority, but a later one may. Else PENDING.

    A healed node does not count: an extension must not revive the lock it extends. Nor does a
    guarded one, which was healed earlier: it may have forgotten the grant of an attempt that still
    gets a majority. But its floor proves, as any other, that another owner has been granted a
    higher token. A superseded minority does not end the lease: any failed attempt of another owner
    leaves a higher floor on a node that had lost our lock key.
    """
    quorum = majority(len(replies))
    extended = superseded = pending = may_extend = 0
    for index, reply in enumerate(replies):
        if reply is None:
            pending += 1
            may_extend += index not in guarded
        elif isinstance(reply, Extended):
            extended += index not in guarded
        elif isinstance(reply, Superseded):
            superseded += 1
    if extended >= quorum:
        return Verdict.REACHED
    if superseded > len(replies) - quorum:
        return Verdict.LOST
    if extended + may_extend >= quorum or superseded + pending > len(replies) - quorum:
        return Verdict.PENDING
    return Verdict.UNAVAILABLE
