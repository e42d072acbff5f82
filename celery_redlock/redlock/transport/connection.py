"""Socket of a connection: write bytes without blocking, read replies through hiredis."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

import hiredis

from celery_redlock.redlock.protocol.scripts import ALL, Argument

from .lingering import WOULD_BLOCK, Connection, linger

_OUTBOX_LIMIT = 1 << 20
"""Bytes that may wait here for a node when the next request is written to it."""
_READ_SIZE = 1 << 16
_LONGEST_REPLY = 1 << 20
_SURPLUS = "it sent more replies than it was asked for"
_MORE_THAN_OWED = 64
"""Replies beyond those owed that are read before they are examined."""
_MOST_MESSAGES = 100_000
"""Messages that one read of a subscription may bring: it has one from each release."""
_HUGE_HEADER = re.compile(rb"[*~>%|]\d{6}")
_LOOKS_HUGE = re.compile(rb"\n" + _HUGE_HEADER.pattern).search
"""A header that announces too many parts, or bytes of a value that look like one."""
_LONGEST_COUNT = 19
"""Digits of a length that the parser accepts."""
_NOTHING = object()
ErrorReply = hiredis.ReplyError
_PushNotification = hiredis.PushNotification


# The stub of hiredis has a tuple of one element, and no return type.
_pack = cast(Callable[[tuple[bytes, ...]], bytes], hiredis.pack_command)
_PLAIN = frozenset((str, int))
_LONGEST = 511
_LENGTHS = tuple(f"\r\n${length}\r\n" for length in range(_LONGEST + 1))
"""What precedes an argument, by its length."""


def pack(command: tuple[Argument, ...]) -> bytes:
    """Return a command in the servers' wire format."""
    # Mostly short ASCII text and numbers: joined here, they take half of what hiredis takes.
    if _PLAIN.issuperset(map(type, command)):
        texts = [f"*{len(command)}"]
        for argument in command:
            text = f"{argument}"  # type: ignore[str-bytes-safe]  # none of them is bytes
            length = len(text)
            texts.append(_LENGTHS[length] if length <= _LONGEST else f"\r\n${length}\r\n")
            texts.append(text)
        texts.append("\r\n")
        if (text := "".join(texts)).isascii():
            return text.encode()
    # Bytes only: for other types hiredis calls back into the interpreter, and crashes the process
    # if a signal handler raises meanwhile (hiredis 3.5).
    return _pack(tuple([one if type(one) is bytes else str(one).encode() for one in command]))


def _from_open_header(data: bytes) -> bytes:
    """Return replies from the first header on that is huge, or whose value is not complete.

    Values are skipped: anybody may have written there what looks like a header.

    Args:
        data: Replies, from the beginning of a header on.
    """
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0 and not _HUGE_HEADER.match(data, at):
        after, count = end + 2, data[at + 1 : end][:_LONGEST_COUNT]
        if data[at] in b"$=" and count.isdigit():
            after += int(count) + 2
        if after > len(data):
            break
        at = after
    return data[at:]


LOAD_SCRIPTS = b"".join(pack(script.loading) for script in ALL)
"""Commands that load all scripts."""


class OnEnd(Protocol):
    """Callback for the end of a connection."""

    def __call__(self, why: str, *, blames_node: bool) -> None:
        """Note the reason, and whether the node is to blame."""


def socket_of(connection: object) -> socket.socket | None:
    """Return the socket of one of redis-py's connections; None while it is not connected."""
    # redis-py has no public way to it; this attribute is the same from 5.2 to 8.
    return cast("socket.socket | None", getattr(connection, "_sock", None))


class NodeConnection:
    """One connection to one node. Not for two threads at once.

    Args:
        connection: Connection made by redis-py.
        votes_from: Time from which the node may vote, seconds on the clock.
        on_end: Called once when the connection is broken.

    Replies come in the order of the commands, so the number of a reply identifies its command. Of
    `sent` commands, the last ``sent - received`` still owe a reply. `is_blocked`: bytes wait here
    because the socket did not accept them. `run_id` and `history`: the server at the other end, and
    its replication id, `identified_at`: when it was asked, seconds on the clock. `greeted`: how
    many replies had come before its first round.

    The network cuts and merges replies anywhere. So only the parser says where a reply ends, and
    only whole replies are counted.
    """

    __slots__ = (
        "_connection",
        "_is_tls",
        "_on_end",
        "_outbox",
        "_reader",
        "_reloaded",
        "_socket",
        "_unfinished",
        "_unread",
        "closed",
        "fd",
        "greeted",
        "history",
        "identified_at",
        "is_blocked",
        "owed_since",
        "received",
        "run_id",
        "sent",
        "votes_from",
    )  # fmt: skip

    def __init__(self, connection: Connection, votes_from: float, on_end: OnEnd) -> None:
        self.votes_from = votes_from
        self.run_id: str | None = None
        self.history = ""
        self.identified_at = 0.0
        self.greeted = 0
        self._connection = connection
        self._on_end = on_end
        self._socket = cast(socket.socket, socket_of(connection))
        self._socket.settimeout(0)
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._outbox = bytearray()
        self._unread = b""
        self._unfinished = 0
        self._reloaded = 0
        self.is_blocked = False
        self.fd = self._socket.fileno()
        self.sent = 0
        self.received = 0
        self.owed_since = 0.0
        self.closed: str | None = None

    def send(self, payload: bytes, requests: int, now: float) -> bool:
        """Write `payload` without blocking; keep the rest that the socket does not accept.

        Returns:
            Whether the socket accepted all of it.
        """
        if (sent := self.sent) == self.received:
            self.owed_since = now
        self.sent = sent + requests
        if self.is_blocked:
            # Of one request any size is kept: a batch is large, and a network's buffers are small.
            self.flush()
            if len(self._outbox) > _OUTBOX_LIMIT:
                self.fail("it reads nothing any more", blames_node=True)
                return False
            self._outbox += payload
            self.flush()
            return False
        try:
            taken = self._socket.send(payload)
        except WOULD_BLOCK:
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
        """Write the bytes that were kept, as far as the socket accepts them."""
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
            self.is_blocked = False
        except WOULD_BLOCK:
            # This holds after a part that was accepted whole, too: nothing may be written past the
            # rest.
            self.is_blocked = True
        except OSError as error:
            self.fail(str(error))

    def receive(self, now: float) -> list[object]:
        """Return the replies that have arrived, in order, without blocking.

        From a server that sends without end only a part is read; the caller has to disconnect.
        """
        # Push messages count as well: nothing is subscribed to.
        raws = self._read_at_most(self.sent - self.received + _MORE_THAN_OWED)
        if _PushNotification in map(type, raws):
            raws = [raw for raw in raws if not isinstance(raw, _PushNotification)]
        if raws:
            self.received += len(raws)
            self.owed_since = now
        return raws

    def hear(self) -> list[object]:
        """Return what has arrived on a connection that is only subscribed, without blocking."""
        return self._read_at_most(_MOST_MESSAGES)

    def _read_at_most(self, enough: int) -> list[object]:
        """Return the replies that the data in the socket completes; fail if they are `enough`."""
        raws: list[object] = []
        while self._read_once(raws) and len(raws) < enough:
            pass
        if len(raws) >= enough:
            self.fail(_SURPLUS, blames_node=True)
        return raws

    def _read_once(self, raws: list[object]) -> bool:
        """Append the replies that one read completes; return whether there may be more."""
        try:
            data = self._socket.recv(_READ_SIZE)
        except WOULD_BLOCK:
            return False
        except OSError as error:
            self.fail(str(error))
            return False
        if not data:
            self.fail("the server closed the connection")
            return False
        is_doubtful = self._unread or _LOOKS_HUGE(b"\n" + data)
        if is_doubtful and _HUGE_HEADER.match(_from_open_header(self._unread + data)):
            # The parser would allocate memory for all of them at once.
            self.fail("no Redis reply: it announces too many parts", blames_node=True)
            return False
        whole = len(raws)
        try:
            self._reader.feed(data)
            # A loop in C: a round spends its time here.
            raws += iter(self._reader.gets, _NOTHING)
        except hiredis.ProtocolError as error:
            self.fail(f"no Redis reply: {error}", blames_node=True)
            return False
        # The parser takes the first byte of a header for read, so only a line's end is the end.
        if self._reader.has_data() or not data.endswith(b"\n"):
            self._unread = _from_open_header(self._unread + data)
        else:
            self._unread = b""
        if len(raws) > whole:
            self._unfinished = 0
        else:
            self._unfinished += len(data)
            if self._unfinished > _LONGEST_REPLY:
                self.fail("no Redis reply: it is too long", blames_node=True)
                return False
        # A plain socket that returned less than requested is empty; a TLS socket may buffer data
        # that poll does not see.
        return len(data) == _READ_SIZE or self._is_tls

    def reload_scripts(self, number: int, now: float) -> None:
        """Load the scripts again, after reply `number` reported that they are missing."""
        if number >= self._reloaded:
            self._reloaded = self.sent
            self.send(LOAD_SCRIPTS, len(ALL), now)

    def refuse_surplus(self) -> bool:
        """Close the connection if more replies came than commands were sent; return whether.

        It can't be known which of the replies belong to the commands.
        """
        if self.received <= self.sent:
            return False
        self.fail(_SURPLUS, blames_node=True)
        return True

    def fail(self, why: str, *, blames_node: bool = False) -> None:
        """Mark the connection as broken; its channel then drops it."""
        if not self.closed:
            self.closed = why
            self._on_end(why, blames_node=blames_node)

    def disconnect(self) -> None:
        """Close the connection. What was written before still reaches the server."""
        if self.received < self.sent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
                linger(self._socket, self._connection)
                return
        self._connection.disconnect()
