"""Addresses that the page listens at."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask
from waitress import channel, wasyncore

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.web.server import listen, new_server, url_of

LONG = "a-token-that-nobody-guesses"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_at_loopback_no_token_is_needed(host: str) -> None:
    with listen(host, 0, []) as listener:
        assert url_of(listener).startswith("http://")


@pytest.mark.parametrize("host", ["0.0.0.0", ""])  # noqa: S104
def test_elsewhere_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigurationError, match="give a token with --token"):
        listen(host or "0.0.0.0", 0, [])  # noqa: S104
    with listen(host or "0.0.0.0", 0, [LONG]):  # noqa: S104
        pass


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused(token: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        listen("127.0.0.1", 0, [token])
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        listen("127.0.0.1", 0, [LONG, token])


def test_equal_tokens_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--token and --view-token must differ"):
        listen("127.0.0.1", 0, [LONG, LONG])
    with listen("127.0.0.1", 0, [LONG, LONG + "-2"]):
        pass


def test_a_port_in_use_is_an_error_of_ours() -> None:
    with listen("127.0.0.1", 0, []) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"can't listen at 127.0.0.1:{port}"):
            listen("127.0.0.1", port, [])


@pytest.fixture
def server() -> Iterator[Any]:
    """A server that each test runs itself, as in `step`."""
    page = Flask("page")
    page.get("/")(lambda: "here")
    with listen("127.0.0.1", 0, []) as listener, closing(new_server(page, listener)) as server:
        yield server
        for one in list(server.active_channels.values()):
            one.handle_close()
        server.task_dispatcher.shutdown()


@pytest.fixture
def connect(server: Any) -> Iterator[Callable[[], socket.socket]]:
    with ExitStack() as connections:
        address = server.socket.getsockname()
        yield lambda: connections.enter_context(socket.create_connection(address, timeout=60))


def step(server: Any, until: Callable[[], object]) -> None:
    while not until():
        wasyncore.poll2(1.0, server._map)


def test_slow_connections_keep_nobody_out(
    server: Any, connect: Callable[[], socket.socket]
) -> None:
    for _ in range(200):
        connect().send(b"GET / HT")
    step(server, lambda: len(server.active_channels) == 200)
    viewer = connect()
    viewer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    viewer.setblocking(False)
    answered: list[bytes] = []

    def is_answered() -> bool:
        try:
            answered.append(viewer.recv(4096))
        except BlockingIOError:
            return False
        return True

    step(server, is_answered)
    assert answered[0].startswith(b"HTTP/1.1 200")


def test_a_request_that_never_ends_is_given_up(
    server: Any, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(channel, "time", SimpleNamespace(time=lambda: now[0]))
    slow = connect()
    slow.send(b"GET ")
    step(server, lambda: any(one.request for one in server.active_channels.values()))
    (here,) = server.active_channels.values()
    for sent in range(5, 16):
        now[0] += 1
        slow.send(b"x")
        step(server, lambda sent=sent: here.request.header_bytes_received == sent)  # type: ignore[misc]
    server.maintenance(now[0])
    assert here.will_close
