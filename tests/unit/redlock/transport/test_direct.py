"""A connection for an operator's questions: its replies, and why there are none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest

from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply, packed
from tests.support.eventually import PATIENCE
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import FakeNode, bulk


@pytest.fixture
def server() -> Iterator[FakeNode]:
    with FakeNode(role="slave") as server:
        yield server


@pytest.fixture
def direct(server: FakeNode) -> Iterator[DirectConnection]:
    direct = DirectConnection(server.url, FakeClock(), PATIENCE)
    direct.connect()
    assert direct.error is None
    yield direct
    direct.close()


def test_each_command_has_its_reply_even_from_a_replica(
    server: FakeNode, direct: DirectConnection
) -> None:
    server.answers |= {"GET": bulk("value"), "DEL": b"-NOPERM no\r\n"}
    value, error, ok = direct.ask([("GET", "k"), ("DEL", "k"), ("ANY",)])
    assert (value, ok) == (b"value", b"OK")
    assert isinstance(error, ErrorReply)
    assert server.heard == [[b"GET", b"k"], [b"DEL", b"k"], [b"ANY"]]
    assert direct.error is None, "an error reply is a reply"


def test_replies_are_received_after_several_were_sent(direct: DirectConnection) -> None:
    direct.send(packed([("ONE",), ("TWO",)]), 2)
    direct.send(packed([("THREE",)]), 1)
    assert direct.receive(3) == [b"OK"] * 3


def test_a_server_that_does_not_answer_is_given_up(
    server: FakeNode, direct: DirectConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["GET"] = b""
    waits: list[float] = []

    def wait(seconds: float) -> list[int]:
        waits.append(seconds)
        direct._clock.move(seconds)  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr(direct._poller, "wait", wait)
    assert direct.ask([("GET", "k")]) == Failed(f"it did not answer within {PATIENCE:g} s")
    assert waits == [PATIENCE]
    heard = len(server.heard)
    assert direct.ask([("GET", "k")]) == Failed(f"it did not answer within {PATIENCE:g} s")
    assert len(server.heard) == heard, "after an error it stays closed"


def test_a_full_server_s_own_words_are_the_reason(
    server: FakeNode, direct: DirectConnection
) -> None:
    def refuse(_: list[bytes]) -> Iterator[bytes]:
        yield b"-ERR max number of clients reached\r\n"
        server.hang_up()

    server.answers["GET"] = refuse
    failed = direct.ask([("GET", "k"), ("GET", "k")])
    assert failed == Failed("ERR max number of clients reached")
    assert direct.error == "ERR max number of clients reached"


def test_words_before_the_question_are_the_reason_for_a_hang_up() -> None:
    with TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        direct = DirectConnection(f"unix://{directory}/s", FakeClock(), PATIENCE)
        direct.connect()
        end, _ = listener.accept()
        end.sendall(b"-ERR max number of clients reached\r\n")
        end.close()
        assert direct.ask([("GET", "k")]) == Failed("ERR max number of clients reached")


def test_a_server_that_speaks_no_redis_is_given_up(
    server: FakeNode, direct: DirectConnection
) -> None:
    server.answers["GET"] = b"HTTP/1.1 400 Bad Request\r\n"
    failed = direct.ask([("GET", "k")])
    assert isinstance(failed, Failed)
    assert "no Redis reply" in failed.error


def test_a_server_that_is_not_there_fails_with_the_reason() -> None:
    with FakeNode() as gone:
        pass
    direct = DirectConnection(gone.url, FakeClock(), PATIENCE)
    assert direct.ask([("GET", "k")]) == Failed("not connected yet")
    direct.connect()
    failed = direct.ask([("GET", "k")])
    assert isinstance(failed, Failed)
    assert "refused" in failed.error


def test_a_connection_that_was_failed_keeps_the_first_reason(direct: DirectConnection) -> None:
    direct.fail("it is in the way")
    direct.fail("later")
    direct.close()
    assert direct.ask([("GET", "k")]) == Failed("it is in the way")


def test_a_closed_connection_answers_nothing(direct: DirectConnection) -> None:
    direct.close()
    assert direct.ask([("GET", "k")]) == Failed("closed")
