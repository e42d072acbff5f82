"""URLs of nodes, and the connections that redis-py makes from them. Nothing is connected here."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import pytest
from redis.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.transport import redis_py
from celery_redlock.redlock.transport.connection import socket_of
from celery_redlock.redlock.transport.redis_py import ERRORS, Connector
from tests.support.processes.forks import fork


def connector(url: str) -> Connector:
    return Connector(url, "the-node", 0.2)


def connected(url: str) -> AbstractConnection:
    return connector(url).new_connection()


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://host:7000/2", Connection),
        ("valkey://host:7000/2", Connection),
        ("rediss://host", SSLConnection),
        ("valkeys://host", SSLConnection),
        ("unix:///tmp/redis.sock", UnixDomainSocketConnection),
    ],
)
def test_each_scheme_has_its_kind_of_connection(url: str, kind: type[AbstractConnection]) -> None:
    assert type(connected(url)) is kind


@pytest.mark.parametrize(
    ("query", "is_checked"),
    [
        ("", True),
        ("ssl_cert_reqs=required", True),
        ("ssl_cert_reqs=none", False),
        ("ssl_check_hostname=false", False),
    ],
)
def test_a_certificate_must_be_of_the_host_unless_told_otherwise(
    query: str, is_checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With redis-py 5 as well, whose default is another one, and which refuses the two together."""
    asked: list[bool] = []

    class OfRedisPy5(SSLConnection):
        def __init__(self, *, ssl_check_hostname: bool = False, **options: Any) -> None:
            asked.append(bool(ssl_check_hostname))
            super().__init__(ssl_check_hostname=ssl_check_hostname, **options)

    url = f"rediss://host?{query}"
    connection = connected(url)
    assert isinstance(connection, SSLConnection)
    assert connection.check_hostname is is_checked
    monkeypatch.setattr("redis.connection.SSLConnection", OfRedisPy5)
    monkeypatch.setattr(redis_py, "SSLConnection", OfRedisPy5)
    connected(url)
    assert asked[-1] is is_checked


@pytest.mark.parametrize("path", ["/locks", "/1/2", "/-1", "/1 "])
def test_a_path_that_is_no_database_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="is not the number of a database"):
        connector(f"redis://host{path}")


@pytest.mark.parametrize("url", ["redis://host?db=-1", "unix:///run/s?db=-1"])
def test_a_negative_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="db, the number of its database, is negative"):
        connector(url)


@pytest.mark.parametrize(("path", "db"), [("", 0), ("//", 0), ("/0/", 0), ("/12", 12)])
def test_the_path_of_a_url_is_the_database(path: str, db: int) -> None:
    assert connected(f"rediss://host{path}").db == db
    assert connector(f"rediss://host{path}").database == db


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("http://host", "http"),
        ("redis+sentinel://host", "redis+sentinel"),
        # All of it may be a password.
        ("host:6379", ""),
        ("redis", ""),
        ("", ""),
    ],
)
def test_an_unknown_scheme_is_refused(url: str, scheme: str) -> None:
    said = rf"^node the-node: the scheme '{re.escape(scheme)}' can't .* redis://, "
    with pytest.raises(ConfigurationError, match=said):
        connector(url)


def test_a_value_in_a_url_may_look_like_one() -> None:
    assert connected("redis://host?username=a://b").username == "a://b"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://host:port", "port"),
        ("redis://host?socket_timeout=soon", "socket_timeout"),
        ("redis://host?socket_timeout=0", "socket_timeout"),
        ("redis://host?socket_timeout=1e300", "socket_timeout"),
        ("redis://host?socket_connect_timeout=1e300", "socket_connect_timeout"),
        ("redis://host?socket_connect_timeout=-1", "socket_connect_timeout"),
        ("redis://host?unheard_of=1", "unheard_of"),
        ("rediss://host?ssl_cert_reqs=perhaps", "perhaps"),
    ],
)
def test_an_option_that_is_not_valid_is_refused_at_once(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"node the-node: .*{said}"):
        connector(url)


@pytest.mark.parametrize(
    "url", ["redis://host?port=7001", "redis://?host=host", "unix:///run/redis?path=/other"]
)
def test_an_address_among_the_options_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^node the-node: its \w+ is an option"):
        connector(url)


@pytest.mark.parametrize(
    "option",
    ["connection_class", "credential_provider", "retry", "retry_on_error", "socket_type"],
)
def test_an_option_that_takes_an_object_is_refused(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^node the-node: {option} takes an object"):
        connector(f"redis://host?{option}=x")


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError) as caught:
        connector("redis://:secret@host?socket_timeout=soon")
    assert "secret" not in str(caught.value)


def test_a_command_is_never_repeated_by_redis_py() -> None:
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        raise RedisConnectionError

    with pytest.raises(RedisConnectionError):
        connected("redis://host?retry_on_timeout=1").retry.call_with_retry(fail, lambda error: None)
    assert len(attempts) == 1


def test_a_url_without_timeouts_gets_those_of_the_lock() -> None:
    connection = connected("redis://host")
    assert isinstance(connection, Connection)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.2, 0.2)
    assert connector("redis://host").timeout == 0.2


def test_timeouts_in_a_url_take_precedence() -> None:
    for query, timeouts in (
        ("socket_timeout=3&socket_connect_timeout=4", (3, 4)),
        ("socket_timeout=3", (3, 0.2)),
    ):
        connection = connected(f"redis://host?{query}")
        assert isinstance(connection, Connection)
        assert (connection.socket_timeout, connection.socket_connect_timeout) == timeouts
        assert connector(f"redis://host?{query}").timeout == 3


@pytest.mark.parametrize(
    "option", ["max_connections=5", "timeout=3", "retry_on_timeout=1", "decode_responses=1"]
)
def test_options_of_redis_py_s_pool_change_nothing(option: str) -> None:
    assert vars_of(f"redis://host?{option}") == vars_of("redis://host")


def vars_of(url: str) -> dict[str, object]:
    plain = bool | int | float | str | None
    connection = connected(url)
    named = vars(connection) | {"decodes": connection.encoder.decode_responses}
    return {name: value for name, value in named.items() if isinstance(value, plain)}


def test_a_connection_that_asks_for_nothing_neither_logs_in_nor_selects() -> None:
    options = vars_of("redis://host")
    plain = connector("redis://me:secret@host/3?protocol=3").new_connection(asks_for_nothing=True)
    assert {name: vars(plain)[name] for name in ("username", "password", "db", "protocol")} == {
        name: options[name] for name in ("username", "password", "db", "protocol")
    }
    assert plain.protocol == 2


def test_each_connection_is_a_new_one() -> None:
    connector_ = connector("redis://host")
    assert connector_.new_connection() is not connector_.new_connection()


def test_a_forked_child_closes_also_connections_that_no_channel_has() -> None:
    """Connections that a thread is making: they are in no channel yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = connected(f"redis://127.0.0.1:{listener.getsockname()[1]}")
        unconnected = connector("redis://host").new_connection()
        connection.connect()
        parents = socket_of(connection)
        assert parents is not None
        theirs, _ = listener.accept()

        def child() -> None:
            assert parents.fileno() == -1

        with theirs:
            _, status = os.waitpid(fork(child), 0)
            assert os.waitstatus_to_exitcode(status) == 0
            theirs.sendall(b"x")
            assert parents.recv(1) == b"x"
            # What the child has done, for the tests that are chosen by what they reach.
            redis_py._disown_connections()
            assert parents.fileno() == -1
            connection.disconnect()
            del unconnected


@pytest.mark.parametrize("error", [TimeoutError, ConnectionRefusedError, UnicodeError])
def test_errors_of_the_network_are_those_of_connecting(error: type[Exception]) -> None:
    assert issubclass(error, ERRORS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host", "*** None"),
        ("rediss://host?ssl_password=secret", "*** None"),
        ("redis://host", "secret None"),
    ],
)
def test_an_error_shows_no_password_of_its_url(url: str, shown: str) -> None:
    said = ValueError("secret None, with args beginning with: 'secr' 'et'")
    assert connector(url).without_secrets(said) == shown


def test_of_a_server_s_error_the_beginning_is_repeated() -> None:
    said = connector("redis://:secret@host").without_secrets(ValueError("secret" * 150_000))
    assert said.startswith("***")
    assert len(said) == 500
