"""No password of a node is in an error, a log line, an event or a repr."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from celery_redlock.operate.target import Target
from celery_redlock.redlock import QuorumUnavailable, Redlock
from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import Event
from celery_redlock.redlock.transport.direct import DirectConnection

MARK = "s3same"
"""Begins each password: what is found of it is no word of a message."""
PASSWORDS = st.text(st.characters(codec="utf-8"), max_size=30).map(lambda text: MARK + text)


@pytest.fixture(scope="module")
def parrot() -> Iterator[int]:
    """Return the port of a server that refuses every command, and repeats it, as old ones do."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=refuse_all, args=(peer,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def refuse_all(peer: socket.socket) -> None:
    with peer, suppress(OSError):
        while words := peer.recv(65536).split(b"\r\n")[2::2]:
            said = b" ".join(b"'%b'" % word for word in words[1:])
            peer.sendall(b"-ERR unknown command '%b', with args beginning with: " % words[0])
            peer.sendall(said.replace(b"\n", b" ").replace(b"\r", b" ") + b"\r\n")


@given(
    password=PASSWORDS,
    form=st.sampled_from(
        [
            "redis://user:{}@127.0.0.1:{}", "redis://:{}@127.0.0.1:{}?protocol=3",
            "redis://user:{}@127.0.0.1:{}?protocol=3", "redis://:{}@127.0.0.1:{}/5",
        ]
    ),
)  # fmt: skip
@example(password=f"{MARK} {MARK}\r\n'\"", form="redis://user:{}@127.0.0.1:{}?protocol=3")
@example(password=MARK + "x" * 200, form="redis://user:{}@127.0.0.1:{}")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None
)
def test_a_server_that_repeats_a_password_does_not_have_it_shown(
    parrot: int, caplog: pytest.LogCaptureFixture, password: str, form: str
) -> None:
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    url = form.format(quote(password, safe=""), parrot)
    events: list[Event] = []
    redlock = Redlock([url], node_timeout=0.05, observers=[events.append])
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.acquire("k")
    shown = traceback.format_exception(caught.value)
    shown += [repr(redlock), repr(redlock.nodes), repr(events)]
    redlock.close()
    direct = DirectConnection(url, SystemClock(), 1.0)
    direct.connect()
    assert "unknown command" in str(direct.error)
    shown += [str(direct.error), repr(Target([url])), caplog.text]
    assert MARK not in "".join(shown)


def test_nor_does_a_check_of_the_nodes_show_it(
    parrot: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    redlock = Redlock([f"redis://user:{MARK}@127.0.0.1:{parrot}"], node_timeout=0.05)
    report = repr(redlock.check())
    redlock.close()
    assert "unknown command" in report
    assert MARK not in report + caplog.text


@given(
    password=PASSWORDS,
    query=st.sampled_from(
        [
            "socket_timeout=soon", "unheard_of=1", "protocol=x", "db=x", "ssl_cert_reqs=perhaps",
            "socket_timeout=-1", "password={}", "ssl_password={}&unheard_of=1",
        ]
    ),
    form=st.sampled_from(
        ["redis://user:{}@host", "rediss://:{}@host:6380/0", "unix://user:{}@/path", "bank://:{}@a"]
    ),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_a_refused_url_never_shows_its_password(password: str, query: str, form: str) -> None:
    secret = quote(password, safe="")
    url = f"{form.format(secret)}?{query.format(secret)}"
    try:
        redlock = Redlock([url])
    except ConfigurationError as error:
        shown = traceback.format_exception(error)
    else:
        shown = [repr(redlock), repr(redlock.nodes)]
    assert MARK not in "".join(shown)
