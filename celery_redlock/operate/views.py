"""Views that the nodes have of lock keys, in few and short commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from celery_redlock.redlock.protocol.replies import Busy, Failed, says_denied
from celery_redlock.redlock.transport.direct import ErrorReply

from .locks import LONGEST_OWNER, owner_in, token_in
from .node_set import Command, NodeSet, Replies

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
            found.append(Busy(owner_in(owner) if owner else "", max(0, pttl), token_in(floor)))
    return found


def reads_in_part(nodes: NodeSet, name: bytes) -> bool:
    """Return whether values may be read in part on all nodes: not every user has that right."""
    replies = nodes.ask([("GETRANGE", name, 0, 0)])
    said = [str(one[0]) for one in replies if isinstance(one, list) and type(one[0]) is ErrorReply]
    return not any(map(says_denied, said))


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
    parts = [("GETRANGE", name, 0, LONGEST_OWNER) for name in (*names, *floors)]
    return [*parts, *pttls]


def column_in(replies: Replies) -> Column | Failed:
    """Return what one node replied to the commands of `viewing`."""
    if isinstance(replies, Failed):
        return replies
    if ErrorReply in map(type, replies):
        # A key of another type is not a lock; MGET replies with nil for it.
        replies = [None if _is_of_other_type(reply) else reply for reply in replies]
        if ErrorReply in map(type, replies):
            return Failed(next(str(reply) for reply in replies if type(reply) is ErrorReply))
    if isinstance(replies[0], list):
        owners, floors, *pttls = cast("list[list[bytes | None]]", replies)
        return owners, floors, cast("list[int]", pttls)
    count = len(replies) // 3
    values = [value or None for value in cast("list[bytes | None]", replies[: 2 * count])]
    return values[:count], values[count:], cast("list[int]", replies[2 * count :])


def _is_of_other_type(reply: object) -> bool:
    return type(reply) is ErrorReply and str(reply).startswith("WRONGTYPE")
