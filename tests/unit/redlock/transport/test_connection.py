"""Packing, as hiredis does, which gets bytes only: else a signal can crash the process. The end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

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
