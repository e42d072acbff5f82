"""Errors made from the replies of the nodes."""

from __future__ import annotations

from collections.abc import Sequence

from celery_redlock.redlock.protocol.replies import Busy, Extended, Failed, Occupied, Superseded
from celery_redlock.redlock.transport.node import Node

from .errors import ConfigurationError, LockHeld, QuorumUnavailable
from .lease import holder_of, host_of, is_reservation

_REASONS: dict[type[object], str] = {
    Occupied: "another owner has the lock key",
    Superseded: "it has granted a higher token since",
}


def unavailable(
    action: str,
    key: str,
    replies: Sequence[object],
    nodes: Sequence[Node],
    otherwise: str | None = None,
) -> QuorumUnavailable:
    """Return the error that names the reason of each node.

    Args:
        action: Verb for the operation that failed.
        key: Key of the lock.
        replies: One entry per node; None: it was not waited for.
        nodes: The nodes.
        otherwise: Reason of the nodes that did answer.
    """
    errors, refused, unheard = {}, 0, sum(reply is None for reply in replies)
    guarded = sum(isinstance(reply, Failed) and reply.is_guarded for reply in replies)
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, Failed):
            errors[node.name] = reply.error
            refused += reply.is_reply
        elif otherwise and reply is not None and not isinstance(reply, Extended):
            errors[node.name] = _REASONS.get(type(reply), otherwise)
            refused += 1
    return QuorumUnavailable(key, errors, len(nodes), action, guarded, refused, unheard)


def held_by(
    key: str,
    leader: Busy | None,
    now: float,
    *,
    contended: bool,
    age: float | None = None,
) -> LockHeld:
    """Return the error that names the leading holder, without the nonce of its owner.

    Args:
        key: Key of the lock.
        leader: Reply that names the holder; None: no node named one.
        now: Time, seconds since the epoch.
        contended: Whether that holder has no majority.
        age: Time since the holder acquired the lock, seconds; None: unknown.
    """
    owner = leader.holder if leader else None
    remaining = max(0, leader.remaining_ms) / 1000 if leader else 0.0
    holder = holder_of(owner) if owner and host_of(owner) else None
    # The floor under a reservation is that of an earlier lease.
    since = None if age is None or is_reservation(owner) else now - age
    return LockHeld(key, holder, remaining, contended, since, owner=owner, age=age)


def refuse_misconfigured(nodes: Sequence[Node], most: int = 0) -> None:
    """Raise an error if more than `most` nodes never were independent masters.

    A node that was one, for this process or the one that has forked it, is only down. Nodes that
    are down don't count, also if they and the others leave no quorum: they may come back.

    Raises:
        ConfigurationError: Such a node is not an independent master; the message names it.
    """
    misconfigured = [node.misconfigured for node in nodes if node.misconfigured]
    if len(misconfigured) > most:
        raise ConfigurationError(*misconfigured[0].args)
