"""The way between a simulated process and a server: how late, how cut, and where bytes end."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from .servers import Server

_MOST_CUTS = 3
_CALL = b"EVALSHA"
_LINE_ENDS = 0.5
"""Share of cuts between two lines: there a piece looks like a whole reply."""


class End(Protocol):
    """The client's end of a connection, as far as its link changes it."""

    def lose(self, *, is_heard: bool) -> None:
        """Lose what is under way, and the connection at the server."""

    def begin_idling(self) -> None:
        """Count the connection's idle time from now on."""


class Sidecar:
    """A proxy beside a client that closes all its connections at the moment a request arrives.

    Every other one, from the first on, calls a script; those between may belong to a handshake.

    Args:
        links: The client's ways to all nodes.
        most: How often it closes them.
        is_executed: Whether the server executes the request, and only the reply is lost.
    """

    def __init__(self, links: Sequence[Link], most: int, *, is_executed: bool) -> None:
        self._links = links
        self._left = most
        self._is_executed = is_executed
        self._awaited = _CALL

    def closes(self, request: bytes, now: float, *, is_executed: bool) -> bool:
        """Return whether the connections are closed now, which is done then.

        Args:
            request: What has arrived.
            now: Time, seconds.
            is_executed: Whether the server has executed it.
        """
        if not self._left or is_executed != self._is_executed or self._awaited not in request:
            return False
        self._left, self._awaited = self._left - 1, b"" if self._awaited else _CALL
        for link in self._links:
            link.closed_at.append(now)
            link.reset(is_heard=True)
        return True


class Link:
    """The way between one process and one server, both directions: a stream of bytes in each.

    Attributes:
        slowness: Longest ordinary delay in one direction, seconds.
        out_until, in_until: Time until which nothing gets through to, or from, the server.
        loses: The next request with these bytes is lost, with all connections; b"": none.
        room: Bytes of a connection that may be under way to the server before it accepts no more;
            0: any number.
        cutting: Chance that what is written arrives in pieces.
        silent_after: Idle time after which the way forgets a connection, and tells nobody, seconds.
        closes_after: Idle time after which the server closes a connection, seconds.
        tears_out, tears_in: Bytes to, or from, the server after which the connection that carries
            them breaks; -1: none does.
        tears_silently: Whether neither side hears of that.
        dead_addresses: How many addresses of the server's name come before the one that answers.
        connects_in: By how much an attempt to connect takes longer, seconds.
        attempts: Times of all attempts to connect, seconds.
        sidecar: The proxy that it leads through, while that is about to close connections.
        closed_at: Times at which that has closed them, seconds.
        is_plain: Whether all of a write arrives at once, and nothing ends in its middle.
    """

    __slots__ = (
        "_cuts", "_random", "attempts", "closed_at", "closes_after", "connects_in", "cutting",
        "dead_addresses", "in_until", "is_plain", "loses", "out_until", "room", "server", "sidecar",
        "silent_after", "slowness", "sockets", "tears_in", "tears_out", "tears_silently",
    )  # fmt: skip

    def __init__(
        self, server: Server, chance: random.Random, slowness: float, cutting: float = 0.0,
        room: int = 0,
    ) -> None:  # fmt: skip
        self.server = server
        self._random = chance.random
        self._cuts = random.Random(chance.getrandbits(32)).random if cutting else chance.random
        self.slowness = slowness
        self.out_until = 0.0
        self.in_until = 0.0
        self.loses = b""
        self.room = room
        self.cutting = cutting
        self.silent_after = self.closes_after = math.inf
        self.tears_out = self.tears_in = -1
        self.tears_silently = False
        self.dead_addresses = 0
        self.connects_in = 0.0
        self.attempts: list[float] = []
        self.sidecar: Sidecar | None = None
        self.closed_at: list[float] = []
        self.sockets: list[End] = []
        self.look()

    def look(self) -> None:
        """Find out again whether it is plain."""
        self.is_plain = (
            not (self.cutting or self.room)
            and self.silent_after == self.closes_after == math.inf
            and self.tears_out < 0
            and self.tears_in < 0
        )

    def delay(self) -> float:
        """Return how long the next segment takes, seconds."""
        return 0.0001 + self.slowness * self._random() ** 3

    def after(self, clear_at: float, opens_at: float, now: float) -> float:
        """Return when a segment arrives: not before the one before it, or before the way opens."""
        return max(clear_at, opens_at, now) + (0.0001 + self.slowness * self._random() ** 3)

    def pieces(self, data: bytes) -> list[bytes]:
        """Return the pieces in which bytes arrive, each at a time of its own."""
        if len(data) < 2 or self._cuts() >= self.cutting:
            return [data]
        count = 1 + int(self._cuts() * _MOST_CUTS)
        ends = sorted({self._cut_in(data) for _ in range(count)} | {len(data)})
        return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def accepts(self, free: int) -> int:
        """Return how many of `free` bytes the next write takes: all, or at times a few less."""
        return free if self._cuts() > 0.3 else 1 + int(self._cuts() * free)

    def _cut_in(self, data: bytes) -> int:
        place = 1 + int(self._cuts() * (len(data) - 1))
        if self._cuts() < _LINE_ENDS:
            return data.find(b"\n", place - 1) + 1 or place
        return place

    # ---- faults

    def cut(self, *, out_until: float, in_until: float) -> None:
        """Hold up what goes out to the server, and what comes in from it, until these times."""
        self.out_until = max(self.out_until, out_until)
        self.in_until = max(self.in_until, in_until)

    def reset(self, *, is_heard: bool) -> None:
        """Break all connections, with what is under way; without `is_heard` the client's end stays
        as it is: half-open."""
        for socket in self.sockets:
            socket.lose(is_heard=is_heard)
        self.sockets = []

    def tear(self, after: int, *, is_reply: bool, is_silent: bool) -> None:
        """Break the connection that carries the byte after so many more, in one direction."""
        self.tears_in, self.tears_out = (after, -1) if is_reply else (-1, after)
        self.tears_silently = is_silent
        self.look()

    def end_idle(self, *, silent_after: float = math.inf, closes_after: float = math.inf) -> None:
        """Let connections end that are idle for so long, seconds."""
        self.silent_after, self.closes_after = silent_after, closes_after
        self.look()
        for socket in self.sockets:
            socket.begin_idling()

    def be_whole(self) -> None:
        """End what ends connections."""
        self.tears_out = self.tears_in = -1
        self.silent_after = self.closes_after = math.inf
        self.look()
