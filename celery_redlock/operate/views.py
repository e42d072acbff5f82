"""Views that the nodes have of lock keys, in few and short commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.direct import ErrorReply

from .locks import View, token_in
from .node_set import Command, NodeSet, Replies

Column = tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[int]]
"""Owners, floors and remaining times of several lock keys on one node, raw."""


def look(nodes: NodeSet, prefix: str, key: str) -> list[View | Failed]:
    """Return the view of each node of one lock."""
    name = f"{prefix}:{{{key}}}".encode()
    found: list[View | Failed] = []
    for replies in nodes.ask(viewing([name])):
        column = column_in(replies)
        if isinstance(column, Failed):
            found.append(column)
        else:
            [owner], [floor], [pttl] = column
            shown = owner.decode(errors="replace") if owner else ""
            found.append(View(shown, max(0, pttl) / 1000, token_in(floor)))
    return found


def viewing(names: Sequence[bytes]) -> list[Command]:
    """Return the commands that read lock keys: none examines more of them than `names` has."""
    floors = [name + b":floor" for name in names]
    return [("MGET", *names), ("MGET", *floors), *[("PTTL", name) for name in names]]


def column_in(replies: Replies) -> Column | Failed:
    """Return what one node replied to the commands of `viewing`."""
    if isinstance(replies, Failed):
        return replies
    if ErrorReply in map(type, replies):
        return Failed(next(str(reply) for reply in replies if isinstance(reply, ErrorReply)))
    owners, floors, *pttls = cast("list[list[bytes | None]]", replies)
    return owners, floors, cast("list[int]", pttls)
