"""Views that the nodes have of lock keys, in few and short commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.redlock.protocol.replies import Busy, Failed, says_denied
from celery_redlock.redlock.transport.direct import ErrorReply

from .locks import LONGEST_OWNER, owner_in, token_in
from .node_set import Command, NodeSet, Replies, refusal_in

Column = tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[int]]
"""Owners, floors and remaining times of several lock keys on one node, raw."""


def read_views(nodes: NodeSet, prefix: str, key: str) -> list[Busy | Failed]:
    """Return the view of each node of one lock; its holder is '' where the lock is free."""
    name = f"{prefix}:{{{key}}}".encode()
    found: list[Busy | Failed] = []
    for replies in nodes.ask(viewing([name], in_part=reads_in_part(nodes, name))):
        column = column_in(replies)
        if isinstance(column, Failed):
            found.append(column)
        else:
            [owner], [floor], [pttl] = column
            found.append(
                Busy(owner_in(owner) if owner else "", pttl if owner else 0, token_in(floor))
            )
    return found


def reads_in_part(nodes: NodeSet, name: bytes) -> bool:
    """Return whether values may be read in part on all nodes: not every user has that right."""
    refusals = map(refusal_in, nodes.ask([_part(name)]))
    return not any(map(says_denied, filter(None, refusals)))


def viewing(names: Sequence[bytes], *, in_part: bool) -> list[Command]:
    """Return the commands that read lock keys: none examines more of them than `names` has.

    Args:
        names: The lock keys.
        in_part: Whether to read no more of a value than an owner has. Read whole, a value that is
            too long for a reply, which anybody may have written there, hides all others.
    """
    floors, pttls = [name + b":floor" for name in names], [("PTTL", name) for name in names]
    if not in_part:
        return [("MGET", *names), ("MGET", *floors), *pttls]
    return [*map(_part, (*names, *floors)), *pttls]


def _part(name: bytes) -> Command:
    return "GETRANGE", name, 0, LONGEST_OWNER


def column_in(replies: Replies) -> Column | Failed:
    """Return what one node replied to the commands of `viewing`."""
    if isinstance(replies, Failed):
        return replies
    if ErrorReply in map(type, replies):
        # A key of another type is not a lock; MGET replies with nil for it.
        replies = [None if str(one).startswith("WRONGTYPE") else one for one in replies]
        if (why := refusal_in(replies)) is not None:
            return Failed(why)
    said: Any = replies
    if isinstance(said[0], list):
        owners, floors, *pttls = said
        return owners, floors, pttls
    count = len(said) // 3
    values = [value or None for value in said[: 2 * count]]
    return values[:count], values[count:], said[2 * count :]
