"""A round in flight: which replies belong to its request."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from celery_redlock.redlock.protocol.replies import Failed

from .connection import NodeConnection

Reply = TypeVar("Reply")
Replies = list[Reply | Failed | None]
NOT_ASKED = sys.maxsize
"""Number of the first reply of a node that was not asked: no reply ever has it."""


class InFlightRound(Generic[Reply]):
    """A round in flight: its request, and the replies to it.

    Attributes:
        payload: Bytes to send to each node.
        count: Number of commands in it.
        replies: Parsed reply of each node; None: it has not answered.
        first: Number of each node's first reply to this round.
    """

    __slots__ = (
        "_parse",
        "_parsed",
        "_parsed_raws",
        "_raws",
        "_repeated",
        "count",
        "first",
        "payload",
        "replies",
    )  # fmt: skip

    def __init__(
        self, payload: bytes, count: int, nodes: int, parse: Callable[[list[object]], Reply]
    ) -> None:
        self.payload = payload
        self.count = count
        self.replies: Replies[Reply] = [None] * nodes
        self.first = [NOT_ASKED] * nodes
        self._parse = parse
        self._parsed_raws: list[object] | None = None
        self._parsed: Reply | None = None
        self._raws: dict[int, list[object]] = {}
        self._repeated: list[int] = []

    def take(self, index: int, number: int, raws: list[object]) -> None:
        """Keep the replies of a node that belong to this round; `number` is that of the first.

        The last reply of the round is parsed with the others.
        """
        if number != self.first[index] or len(raws) != self.count:
            begin = self.first[index] - number
            kept = self._raws.setdefault(index, [])
            kept += raws[max(0, begin) : max(0, begin + self.count)]
            if len(kept) != self.count:
                return
            raws = kept
        # Nodes mostly reply alike.
        if raws != self._parsed_raws:
            self._parsed = self._parse(raws)
            self._parsed_raws = raws
        self.replies[index] = self._parsed

    def fail_the_rest(self, why: Callable[[int], Failed]) -> None:
        """Fail the nodes that were not asked, each as `why` returns."""
        for index, number in enumerate(self.first):
            if number == NOT_ASKED:
                self.replies[index] = why(index)

    def repeat(self, index: int, number: int, connection: NodeConnection, now: float) -> None:
        """Repeat the request once, if reply `number` is to this round: the scripts were lost."""
        if number < self.first[index]:
            return
        if index in self._repeated:
            self.replies[index] = Failed("it keeps forgetting its scripts")
            self.first[index] = NOT_ASKED
            return
        self._repeated.append(index)
        self._raws.pop(index, None)
        self.first[index] = connection.sent
        connection.send(self.payload, self.count, now)
