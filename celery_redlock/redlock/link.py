"""A connection's socket: bytes out without ever blocking, replies in through hiredis."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol, cast

import hiredis

from .scripts import ALL, Argument

_OUTBOX_LIMIT = 1 << 20
_READ_SIZE = 1 << 16
_NOTHING = object()
ErrorReply = hiredis.ReplyError
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


# The stub of hiredis names a tuple of one, and no type for what comes back.
pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)
"""Return a command in the servers' wire format."""


def is_error(raw: object, prefix: str) -> bool:
    """Tell whether a raw reply is an error of the kind that starts with `prefix`."""
    return isinstance(raw, ErrorReply) and str(raw).startswith(prefix)


_LOAD_SCRIPTS = b"".join(pack(script.loading) for script in ALL)


class Connection(Protocol):
    """What is needed of redis-py's."""

    def disconnect(self) -> None:
        """Close it."""


class OnEnd(Protocol):
    """Told of the end of a connection."""

    def __call__(self, why: str, *, blames_node: bool) -> None:
        """Take note of it."""


class Link:
    """One connection to one node. Not for two threads at once.

    Args:
        connection: As redis-py has made it.
        votes_from: When its node may vote, seconds on the clock.
        on_end: Called when it is of no use any more, with the reason, and whether that is the
            node's fault.

    Replies come in the order of the requests, so a reply's number tells what it answers: of `sent`
    requests, the replies of the last ``sent - received`` are still owed. `is_blocked` says that
    bytes wait here because the socket would not take them.
    """

    __slots__ = (
        "_connection",
        "_is_tls",
        "_on_end",
        "_outbox",
        "_reader",
        "_reloaded",
        "_socket",
        "closed",
        "fd",
        "is_blocked",
        "owed_since",
        "received",
        "sent",
        "votes_from",
    )  # fmt: skip

    def __init__(self, connection: Connection, votes_from: float, on_end: OnEnd) -> None:
        self.votes_from = votes_from
        self._connection = connection
        self._on_end = on_end
        # redis-py has no public way to the socket; this attribute is the same from 6.4 to 8.
        self._socket = cast(socket.socket, cast(Any, connection)._sock)  # noqa: SLF001
        self._socket.settimeout(0)
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._outbox = bytearray()
        self._reloaded = 0
        self.is_blocked = False
        self.fd = self._socket.fileno()
        self.sent = 0
        self.received = 0
        self.owed_since = 0.0
        self.closed: str | None = None

    def send(self, payload: bytes, requests: int, now: float) -> bool:
        """Write `payload`, without ever blocking; what the socket does not take is kept.

        Returns:
            Whether it took all.
        """
        if self.sent == self.received:
            self.owed_since = now
        self.sent += requests
        if self.is_blocked:
            self._outbox += payload
            self.flush()
            return False
        try:
            taken = self._socket.send(payload)
        except _WOULD_BLOCK:
            taken = 0
        except OSError as error:
            self.fail(str(error))
            return False
        if taken == len(payload):
            return True
        self._outbox += payload[taken:]
        self.is_blocked = True
        return False

    def flush(self) -> None:
        """Write what is left over, as far as the socket takes it."""
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
            self.is_blocked = False
        except _WOULD_BLOCK:
            if len(self._outbox) > _OUTBOX_LIMIT:
                self.fail("it reads nothing any more", blames_node=True)
        except OSError as error:
            self.fail(str(error))

    def receive(self, now: float) -> list[object]:
        """Return the replies that are there, in order; never block."""
        raws: list[object] = []
        while True:
            try:
                data = self._socket.recv(_READ_SIZE)
            except _WOULD_BLOCK:
                break
            except OSError as error:
                self.fail(str(error))
                break
            if not data:
                self.fail("the server closed the connection")
                break
            try:
                self._reader.feed(data)
                # A loop of the interpreter's own: this is where a round spends its time.
                raws += iter(self._reader.gets, _NOTHING)
            except hiredis.ProtocolError as error:
                self.fail(f"no Redis reply: {error}")
                break
            # A plain socket that gave less than was asked for is empty; a TLS socket may hold
            # more than the poll can see.
            if len(data) < _READ_SIZE and not self._is_tls:
                break
        if hiredis.PushNotification in map(type, raws):
            raws = [raw for raw in raws if not isinstance(raw, hiredis.PushNotification)]
        if raws:
            self.received += len(raws)
            self.owed_since = now
        return raws

    def reload_scripts(self, number: int, now: float) -> None:
        """Load the scripts again, after reply `number` said that the server has forgotten them."""
        if number >= self._reloaded:
            self._reloaded = self.sent
            self.send(_LOAD_SCRIPTS, len(ALL), now)

    def disown(self) -> None:
        """Close this process's copy of the descriptor, without a word to the server."""
        self._socket.close()

    def fail(self, why: str, *, blames_node: bool = False) -> None:
        """Note that the connection is of no use any more; its channel then drops it."""
        if not self.closed:
            self.closed = why
            self._on_end(why, blames_node=blames_node)

    def disconnect(self) -> None:
        """Close the connection. What was written before still reaches the server."""
        self._connection.disconnect()
