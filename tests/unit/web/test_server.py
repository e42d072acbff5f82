"""Addresses that the page listens at."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import waitress.server
from flask import Flask, request
from waitress import channel, wasyncore

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.web import server as module
from celery_redlock.web.server import listen, new_server, url_of

LONG = "a-token-that-nobody-guesses"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_at_loopback_no_token_is_needed(host: str) -> None:
    with listen(host, 0, []) as listener:
        address, port = listener.getsockname()[:2]
        expected = f"[{address}]" if ":" in address else address
        assert url_of(listener) == f"http://{expected}:{port}/"


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
    with listen("127.0.0.1", 0, ["x" * 16, LONG]):
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
    with ready(page) as server:
        yield server


@contextmanager
def ready(page: Flask, *options: str | None) -> Iterator[Any]:
    with (
        listen("127.0.0.1", 0, []) as listener,
        closing(new_server(page, listener, *options)) as server,
    ):
        assert server.socket.getsockname() == listener.getsockname()
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
    assert answer(server, connect()).startswith(b"HTTP/1.1 200")


def answer(server: Any, viewer: socket.socket, *headers: bytes) -> bytes:
    """Return what a browser gets."""
    viewer.send(b"\r\n".join((b"GET / HTTP/1.1", b"Host: localhost", *headers, b"", b"")))
    viewer.setblocking(False)
    answered = b""

    def is_answered() -> bool:
        nonlocal answered
        try:
            answered += viewer.recv(4096)
        except BlockingIOError:
            return False
        # The body may come later than its headers.
        head, _, body = answered.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        return length is not None and len(body) >= int(length[1])

    step(server, is_answered)
    return answered


@pytest.mark.parametrize(
    ("proxy", "scheme"), [("127.0.0.1", "https"), ("10.0.0.7", "http"), (None, "http")]
)
def test_only_a_trusted_proxy_says_that_a_browser_uses_tls(proxy: str | None, scheme: str) -> None:
    page = Flask("page")
    page.get("/")(lambda: f"{request.scheme} {request.headers.get('X-Forwarded-Proto')}")
    with ready(page, proxy) as server, socket.create_connection(server.socket.getsockname()) as one:
        said = answer(server, one, b"X-Forwarded-Proto: https", b"Connection: close")
    forwarded = "https" if scheme == "https" else None
    assert said.endswith(f"{scheme} {forwarded}".encode())
    assert b"\r\nServer:" not in said


def test_eight_viewers_are_answered_at_once() -> None:
    all_here = threading.Barrier(8)
    page = Flask("page")
    page.get("/")(lambda: str(all_here.wait(60)))
    with ready(page) as server, ExitStack() as connections:
        viewers = [
            connections.enter_context(socket.create_connection(server.socket.getsockname()))
            for _ in range(8)
        ]
        for viewer in viewers[1:]:
            viewer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(server, viewers[0]).startswith(b"HTTP/1.1 200")
        # select() can't watch descriptors above 1023.
        assert server.adj.asyncore_use_poll


def test_server_and_listener_are_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    fake = SimpleNamespace(run=lambda: done.append("run"), close=lambda: done.append("closed"))

    def new(*args: object) -> SimpleNamespace:
        done.append(args)
        return fake

    monkeypatch.setattr(module, "new_server", new)
    page, listener = Flask("page"), listen("127.0.0.1", 0, [])
    module.serve(page, listener, "10.0.0.7")
    assert done == [(page, listener, "10.0.0.7"), "run", "closed"]
    assert listener.fileno() == -1


def test_a_name_may_lead_to_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    found = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 8790, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [found])
    monkeypatch.setattr(socket, "create_server", lambda *args, **more: made.append((args, more)))
    listen("here", 8790, [])
    assert made == [((("::1", 8790),), {"family": socket.AF_INET6})]


def test_an_address_of_ipv6_is_in_brackets() -> None:
    listener: Any = SimpleNamespace(getsockname=lambda: ("::1", 8790, 0, 0))
    assert url_of(listener) == "http://[::1]:8790/"


def test_a_request_that_never_ends_is_given_up(
    server: Any, connect: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    clock = SimpleNamespace(time=lambda: now[0])
    monkeypatch.setattr(channel, "time", clock)
    monkeypatch.setattr(waitress.server, "time", clock)
    slow = connect()
    slow.send(b"GET ")
    step(server, lambda: any(one.request for one in server.active_channels.values()))
    (here,) = server.active_channels.values()
    for sent in range(5, 15):
        now[0] += 1
        slow.send(b"x")
        step(server, lambda sent=sent: here.request.header_bytes_received == sent)  # type: ignore[misc]
    assert not here.will_close
    now[0] += 1
    slow.send(b"x")
    wasyncore.poll2(1.0, server._map)
    assert here.will_close
