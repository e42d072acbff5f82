"""One whole reply, as nodes mostly send it, needs no parser; whatever else comes does."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any, cast

import hiredis
import pytest

from celery_redlock.redlock.transport.connection import NodeConnection

TOKEN = b"1795000000000000"
GRANTED = b"$16\r\n%b\r\n" % TOKEN
RELEASED = b":1\r\n"
REPLIES = (
    RELEASED,
    GRANTED,
    b"-ERR no\r\n",
    b"$-1\r\n",
    # In what others wrote, there may be what looks like a reply.
    b"*3\r\n:0\r\n$4\r\n:1\r\n\r\n:12\r\n",
    b"$23\r\n%b\r\n" % GRANTED,
    b":-1\r\n",
    RELEASED,
)


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()


class Wire:
    """A connection, the server's end of it, and the pieces that were left to the parser."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ours, self.end = socket.socketpair()
        self.connection = NodeConnection(Connection(ours), 0.0, on_end=lambda *_, **__: None)
        self.parsed: list[bytes] = []
        parse = NodeConnection._feed

        def record(connection: NodeConnection, data: bytes, raws: list[object]) -> bool:
            self.parsed.append(data)
            return parse(connection, data, raws)

        monkeypatch.setattr(NodeConnection, "_feed", record)
        self.connection.sent = 1
        self.receives(b":0\r\n")
        self.parsed.clear()

    def receives(self, *pieces: bytes) -> list[object]:
        raws: list[object] = []
        for piece in pieces:
            self.end.sendall(piece)
            raws += self.connection.receive(0.0)
        return raws


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    made = Wire(monkeypatch)
    yield made
    made.connection.disconnect()
    made.end.close()


def shown(raws: list[object]) -> list[str]:
    return [repr(raw) for raw in raws]


def test_an_ordinary_reply_needs_no_parser(wire: Wire) -> None:
    wire.connection.sent += 4
    assert wire.receives(GRANTED, RELEASED, b":0\r\n", GRANTED) == [TOKEN, 1, 0, TOKEN]
    assert wire.parsed == []
    assert wire.connection.received == wire.connection.sent


@pytest.mark.parametrize(
    "said", [GRANTED + RELEASED, *REPLIES[2:-1], b":10\r\n", b"$3\r\n123\r\n", b"+OK\r\n", b":1"]
)
def test_whatever_else_comes_is_parsed(wire: Wire, said: bytes) -> None:
    wire.connection.sent += 2
    wire.receives(said)
    assert wire.parsed == [said]


def test_replies_are_the_same_wherever_they_are_cut(wire: Wire) -> None:
    stream = b"".join(REPLIES)
    reader = hiredis.Reader()
    reader.feed(stream)
    expected = shown([cast(Any, reader).gets() for _ in REPLIES])
    for first, second in itertools.combinations(range(1, len(stream)), 2):
        wire.connection.sent += len(REPLIES)
        raws = wire.receives(stream[:first], stream[first:second], stream[second:])
        assert shown(raws) == expected, (first, second)
    assert not wire.connection.closed


def test_an_ordinary_reply_is_parsed_after_a_part_of_another(wire: Wire) -> None:
    wire.connection.sent += 2
    assert wire.receives(b"$4\r\n", RELEASED) == []
    assert wire.receives(b"\r\n", GRANTED) == [RELEASED, TOKEN]


def test_what_was_not_asked_for_is_parsed_and_counted(wire: Wire) -> None:
    assert wire.receives(RELEASED) == [1]
    assert wire.parsed == [RELEASED]
    assert wire.connection.refuse_surplus()


def test_a_part_of_what_was_not_asked_for_ends_the_connection(wire: Wire) -> None:
    wire.connection.sent += 1
    assert wire.receives(RELEASED + b">2\r\n:1\r\n") == [1]
    assert wire.connection.closed


def test_a_push_beside_a_reply_is_no_reply(wire: Wire) -> None:
    wire.connection.sent += 2
    push = b">2\r\n$1\r\na\r\n:1\r\n"
    assert wire.receives(push + RELEASED, RELEASED + push, push) == [1, 1]
    assert wire.connection.received == wire.connection.sent
    assert not wire.connection.closed
