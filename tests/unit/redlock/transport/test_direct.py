"""A connection for an operator's questions: its replies, and why there are none."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply, packed
from celery_redlock.redlock.transport.redis_py import Connector
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import bulk

PATIENCE = 7.0
FULL = b"-ERR max number of clients reached\r\n"
HANGS_UP = b""


class Stage:
    """A direct connection, which is redis-py's as well, and the server at its other end.

    Attributes:
        says: What the server says, one after the other, each time it is waited for; `HANGS_UP`
            ends the connection.
        needs: How many bytes it reads before it says anything.
        heard: What it has read by then.
        is_over: Whether it has been told of the end.
        waits: How long it was waited for, seconds.
        refusal: What connecting raises.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sock, self.end = socket.socketpair()
        self.end.setblocking(False)
        self.says: list[bytes] = []
        self.heard = bytearray()
        self.waits: list[float] = []
        self.refusal: Exception | None = None
        self.needs, self.is_over = 0, False
        monkeypatch.setattr(Connector, "new_connection", lambda _: self)
        self.direct = DirectConnection("redis://:secret@node:7000/3", FakeClock(), PATIENCE)
        poll = self.direct._poller.wait

        def wait(seconds: float) -> Sequence[int]:
            self.waits.append(seconds)
            self.reads()
            if self.says and len(self.heard) >= self.needs:
                said = self.says.pop(0)
                self.end.sendall(said) if said else self.end.close()
            return poll(0.0)

        monkeypatch.setattr(self.direct._poller, "wait", wait)

    def connect(self) -> None:
        if self.refusal:
            raise self.refusal

    def disconnect(self) -> None:
        self._sock.close()

    def reads(self) -> None:
        """Read all that has come."""
        with contextlib.suppress(BlockingIOError):
            while data := self.end.recv(1 << 16):
                self.heard += data
            self.is_over = True

    def is_told_of_the_end(self) -> bool:
        self.reads()
        return self.is_over

    def asks(self, *names: str) -> list[object] | Failed:
        return self.direct.ask([(name,) for name in names])


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    stage.direct.close()
    stage.disconnect()
    stage.end.close()


@pytest.fixture
def stage(unconnected: Stage) -> Stage:
    unconnected.direct.connect()
    assert unconnected.direct.error is None
    return unconnected


def test_a_connection_has_the_address_and_database_of_its_url(unconnected: Stage) -> None:
    assert (unconnected.direct.name, unconnected.direct.database) == ("node:7000", 3)
    with pytest.raises(ConfigurationError, match=r"^node other:7000: "):
        DirectConnection("redis://other:7000/x", FakeClock(), PATIENCE)


def test_each_command_has_its_reply_and_an_error_is_one(stage: Stage) -> None:
    stage.says = [bulk("value") + b"-NOPERM no\r\n", b"+OK\r\n"]
    replies = stage.asks("GET", "DEL", "ANY")
    assert isinstance(replies, list)
    value, error, ok = replies
    assert (value, ok) == (b"value", b"OK")
    assert isinstance(error, ErrorReply)
    assert stage.heard == b"".join(
        b"*1\r\n$3\r\n%b\r\n" % name for name in (b"GET", b"DEL", b"ANY")
    )
    assert stage.direct.error is None
    assert stage.waits == [PATIENCE] * 2, "anew after each part"


def test_replies_that_came_early_are_those_of_later_commands(stage: Stage) -> None:
    stage.direct.send(packed([("ONE",), ("TWO",)]), 2)
    stage.direct.send(packed([("THREE",)]), 1)
    stage.says = [b":1\r\n:2\r\n:3\r\n"]
    assert [stage.direct.receive(2), stage.direct.receive(1)] == [[1, 2], [3]]
    stage.says = [b":4\r\n"]
    assert stage.asks("FOUR") == [4], "none of them again"


def test_a_request_of_any_size_reaches_the_server(stage: Stage) -> None:
    payload = packed([("X" * 100_000,)] * 20)
    stage.needs, stage.says = len(payload), [b":1\r\n" * 20]
    stage.direct.send(payload, 20)
    assert stage.direct.receive(20) == [1] * 20
    assert stage.heard == payload


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ([], f"it did not answer within {PATIENCE:g} s"),
        ([b":1\r\n"], f"it did not answer within {PATIENCE:g} s"),
        ([FULL, HANGS_UP], "ERR max number of clients reached"),
        ([b":1\r\n", HANGS_UP], "the server closed the connection"),
        (
            [b"HTTP/1.1 400 Bad Request\r\n"],
            'no Redis reply: Protocol error, got "H" as reply type byte',
        ),
        ([b":1\r\n:2\r\n:3\r\n"], "it sent more replies than it was asked for"),
    ],
)
def test_replies_that_do_not_come_have_a_reason(stage: Stage, says: list[bytes], why: str) -> None:
    stage.says = [*says]
    assert stage.asks("GET", "GET") == Failed(why)
    assert stage.direct.error == why
    assert HANGS_UP in says or stage.is_told_of_the_end()
    waits = len(stage.waits)
    assert stage.asks("GET", "GET") == Failed(why), "after an error it stays closed"
    assert len(stage.waits) == waits


def test_words_before_the_question_are_the_reason_for_a_hang_up(stage: Stage) -> None:
    stage.end.sendall(b"+hello\r\n" + FULL)
    stage.end.close()
    assert stage.asks("GET") == Failed("ERR max number of clients reached")


def test_a_server_that_refuses_the_connection_fails_with_its_words(unconnected: Stage) -> None:
    assert unconnected.asks("GET") == Failed("not connected yet")
    unconnected.refusal = ConnectionRefusedError("refused: secret")
    unconnected.direct.connect()
    assert unconnected.direct.error == "refused: ***"
    assert unconnected.asks("GET") == Failed("refused: ***")
    assert unconnected.is_told_of_the_end()


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_closed_connection_keeps_its_first_reason(stage: Stage, is_answered: bool) -> None:
    if is_answered:
        stage.says = [b":1\r\n-ERR no\r\n"]
        stage.direct.send(packed([("ONE",), ("TWO",)]), 2)
        stage.direct.receive(1)
    stage.direct.fail("it is in the way")
    stage.direct.fail("later")
    stage.direct.close()
    assert stage.asks("GET") == Failed("it is in the way")
    assert stage.is_told_of_the_end()


def test_a_closed_connection_answers_nothing(stage: Stage) -> None:
    stage.direct.close()
    assert stage.asks("GET") == Failed("closed")
