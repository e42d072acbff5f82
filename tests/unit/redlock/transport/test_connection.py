"""Packing, as hiredis does, which gets bytes only: else a signal can crash the process. The end."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.redlock.protocol.scripts import ALL, GRANT, Argument, evalsha
from celery_redlock.redlock.transport import connection
from celery_redlock.redlock.transport.connection import NodeConnection, pack
from tests.support.root import ROOT

STORM = """
import signal
from celery_redlock.redlock.transport.connection import pack
from celery_redlock.redlock.protocol.scripts import GRANT, evalsha

class Struck(Exception): pass

def strike(*_): raise Struck

signal.signal(signal.SIGALRM, strike)
command = evalsha(GRANT, ("lock", "floor"), "é", 30_000, 1_795_000_000_000_000, 1_000_000, 1)
for _ in range(4000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while True:
            pack(command)
    except Struck:
        pass
"""


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    parts: list[object] = []

    def record(command: tuple[bytes, ...]) -> object:
        parts.extend(command)
        return hiredis.pack_command(command)  # type: ignore[arg-type]

    monkeypatch.setattr(connection, "_pack", record)
    return parts


class Loud(str):
    """Text that is sent as its `str`, not as what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


ARGUMENTS = st.one_of(
    st.text("a $*\r\n"),
    st.text("a é€😀\r\n"),
    st.integers(),
    st.binary(),
    st.integers(505, 515).map("x".__mul__),
)


@example(())
@example(("TIME",))
@example(evalsha(GRANT, ("lock", "floor"), "owner", 30_000, 1_795_000_000_000_000, 1_000_000, 1))
@example(ALL[0].loading)
@given(st.lists(ARGUMENTS).map(tuple))
def test_a_command_is_packed_as_by_hiredis(command: tuple[Argument, ...]) -> None:
    assert pack(command) == hiredis.pack_command(command)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", [b"raw", "é", Loud("text"), True])
def test_only_bytes_reach_hiredis(packed: list[object], argument: Argument) -> None:
    sent = argument if isinstance(argument, bytes) else str(argument).encode()
    assert pack(("SET", argument, 12)) == hiredis.pack_command((b"SET", sent, b"12"))  # type: ignore[arg-type]
    assert packed == [b"SET", sent, b"12"]


def test_a_handler_that_raises_in_packing_crashes_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], cwd=ROOT, check=False)
    assert done.returncode == 0


# ---- the end of a connection


class Wire:
    """A connection over a socket pair.

    Attributes:
        end: The server's end.
        told: Reasons for the end of the connection, with whether the node is to blame.
    """

    def __init__(self) -> None:
        self._sock, self.end = socket.socketpair()
        self.told: list[tuple[str, bool]] = []
        self.connection = NodeConnection(self, 0.0, self.note)

    def note(self, why: str, *, blames_node: bool) -> None:
        self.told.append((why, blames_node))

    def disconnect(self) -> None:
        self._sock.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.connection.disconnect()
    wire.end.close()
    wire.disconnect()


@pytest.mark.parametrize(
    ("said", "why", "blames_node"),
    [
        (b"", "the server closed the connection", False),
        (b":1\r\n:2\r\n", "it sent more replies than it was asked for", True),
        (b"*1000000\r\n", "no Redis reply: it announces too many parts", True),
        (b"hello", 'no Redis reply: Protocol error, got "h" as reply type byte', True),
    ],
)
def test_a_node_is_blamed_for_what_it_sends_only(
    wire: Wire, said: bytes, why: str, blames_node: bool
) -> None:
    assert wire.connection.send(b"x", 1, 0.0), "all of it is taken"
    wire.end.sendall(said)
    if not said:
        wire.end.shutdown(socket.SHUT_WR)
    for _ in range(2):
        wire.connection.receive(0.0)
        wire.connection.refuse_surplus()
    assert wire.told == [(why, blames_node)]


def test_a_node_is_blamed_that_reads_nothing_any_more(wire: Wire) -> None:
    assert not wire.connection.send(b"x" * (4 << 20), 1, 0.0)
    assert not wire.connection.send(b"x", 1, 0.0)
    assert wire.told == [("it reads nothing any more", True)]


# ---- what a socket takes and brings


class Played:
    """A connection, and the socket that plays its part.

    Args:
        parts: Numbers of bytes that it takes, bytes that it brings, or errors that it raises; then
            it is not ready.

    Attributes:
        taken: Bytes that it has taken.
        is_closed: Whether it was closed.
        told: Reasons for the end of the connection, with whether the node is to blame.
    """

    def __init__(self, *parts: int | bytes | Exception) -> None:
        self._sock, self._parts = self, deque(parts)
        self.taken, self.is_closed = b"", False
        self.told: list[tuple[str, bool]] = []
        self.connection = NodeConnection(
            self, 0.0, lambda why, *, blames_node: self.told.append((why, blames_node))
        )

    def send(self, data: bytes) -> int:
        count: int = min(len(data), self.recv(0))
        self.taken += data[:count]
        return count

    def recv(self, _: int) -> Any:
        part = self._parts.popleft() if self._parts else BlockingIOError()
        if isinstance(part, Exception):
            raise part
        return part

    def settimeout(self, seconds: float) -> None:
        assert seconds == 0

    def fileno(self) -> int:
        return 7

    def shutdown(self, _: int) -> None:
        raise OSError("not connected any more")

    def disconnect(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("first", [3, 2, BlockingIOError()])
def test_bytes_that_a_socket_does_not_take_follow_later(first: int | Exception) -> None:
    played = Played(first, 1, 1, 1)
    assert played.connection.send(b"abc", 1, 0.0) == (first == 3)
    assert played.connection.is_blocked == (first != 3)
    played.connection.flush()
    assert played.taken == b"abc"
    assert played.connection.is_blocked is False


def test_a_node_that_reads_again_gets_all_and_is_not_blamed() -> None:
    played = Played(1, 4 << 20, 1)
    for payload in (b"x" * (2 << 20), b"y"):
        assert not played.connection.send(payload, 1, 0.0)
    assert played.taken == b"x" * (2 << 20) + b"y"
    assert played.told == []
    assert played.connection.is_blocked is False


@pytest.mark.parametrize("before", [(), (2,), (2, BlockingIOError())])
def test_an_error_in_writing_ends_the_connection(before: tuple[int | Exception, ...]) -> None:
    played = Played(*before, OSError("broken"))
    for _ in range(1 + len(before)):
        assert not played.connection.send(b"abc", 1, 0.0)
    assert played.told == [("broken", False)]


def test_an_error_in_reading_ends_the_connection() -> None:
    played = Played(b":1\r\n", OSError("reset"), b":2\r\n")
    played.connection.sent = 2
    assert played.connection.receive(0.0) == [1]
    assert played.connection.receive(0.0) == []
    assert played.told == [("reset", False)]


def test_a_connection_that_can_tell_no_end_is_closed_at_once() -> None:
    played = Played()
    played.connection.sent = 1
    played.connection.disconnect()
    assert played.is_closed


def test_long_replies_are_read_at_once_and_each_has_its_limit() -> None:
    reply = b"$600000\r\n%b\r\n" % (b"x" * 600_000)
    stream = 2 * reply
    pieces = [stream[at : at + (1 << 16)] for at in range(0, len(stream), 1 << 16)]
    played = Played(*pieces)
    played.connection.sent = 2
    assert [len(raw) for raw in cast(Any, played.connection.receive(0.0))] == [600_000] * 2
    assert played.told == []


def test_tls_records_are_read_until_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll does not see those that are in memory."""
    monkeypatch.setattr(ssl, "SSLSocket", Played)
    played = Played(b":1\r\n", b":2\r\n", ssl.SSLWantReadError())
    played.connection.sent = 2
    assert played.connection.receive(0.0) == [1, 2]
