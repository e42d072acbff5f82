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
    """One round under way: what was asked, and which replies answer it."""

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

    def take(self, index: int, number: int, raw: object) -> None:
        """Keep reply `number` if it is one of this round's; the last completes the node's."""
        if not 0 <= number - self.first[index] < self.count:
            return
        if self.count == 1:
            self.replies[index] = self._parse([raw])
            return
        raws = self._raws.setdefault(index, [])
        raws.append(raw)
        if len(raws) == self.count:
            self.replies[index] = self._parse(raws)

    def repeat(self, index: int, number: int, link: Link, now: float) -> None:
        """Send the request again, once, if it is this round's: its server had lost the scripts."""
        if number < self.first[index]:
            return
        if index in self._repeated:
            self.replies[index] = Failed("it keeps forgetting its scripts")
            return
        self._repeated.add(index)
        self._raws.pop(index, None)
        self.first[index] = link.sent
        link.send(self.payload, self.count, now)
