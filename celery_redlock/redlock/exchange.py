"""One round under way: which of the replies that come are those to its request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from .link import Link
from .quorum import Failed

Reply = TypeVar("Reply")
Replies = list[Reply | Failed | None]
_NOT_ASKED = sys.maxsize
"""As the number of a round's first reply: no reply ever has it."""


class Exchange(Generic[Reply]):
    """One round under way: what was asked, and which replies answer it.

    Attributes:
        payload: What a node is sent.
        count: How many requests that is.
        replies: What each node says, all in all.
        first: For each node, the number of its first reply to this.
    """

    __slots__ = ("_parse", "_raws", "_repeated", "count", "first", "payload", "replies")

    def __init__(
        self, payload: bytes, count: int, nodes: int, parse: Callable[[list[object]], Reply]
    ) -> None:
        self.payload = payload
        self.count = count
        self.replies: Replies[Reply] = [None] * nodes
        self.first = [_NOT_ASKED] * nodes
        self._parse = parse
        self._raws: dict[int, list[object]] = {}
        self._repeated: set[int] = set()

    def take(self, index: int, number: int, raws: list[object]) -> None:
        """Keep those of a node's replies, from `number` on, that are this round's.

        The last one completes what the node says.
        """
        if number != self.first[index] or len(raws) != self.count:
            begin = self.first[index] - number
            kept = self._raws.setdefault(index, [])
            kept += raws[max(0, begin) : max(0, begin + self.count)]
            if len(kept) != self.count:
                return
            raws = kept
        self.replies[index] = self._parse(raws)

    def repeat(self, index: int, number: int, link: Link, now: float) -> None:
        """Send the request again, once, if it is this round's: its server had lost the scripts."""
        if number < self.first[index]:
            return
        if index in self._repeated:
            self.replies[index] = Failed("it keeps forgetting its scripts")
            self.first[index] = _NOT_ASKED
            return
        self._repeated.add(index)
        self._raws.pop(index, None)
        self.first[index] = link.sent
        link.send(self.payload, self.count, now)
