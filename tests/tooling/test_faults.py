"""The tools that inject faults do what they say."""

from __future__ import annotations

import gc
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock.testing import Server, Servers
from tests.support.eventually import eventually
from tests.support.fakes.fake_node import FakeNode
from tests.support.faults.clock_shim import WallClock
from tests.support.faults.of_nodes import Replicas, Victims, new_node
from tests.support.faults.proxy import Proxy
from tests.support.requirements import redis_versions


def client_of(proxy: Proxy) -> redis.Redis:
    return redis.Redis.from_url(proxy.url, socket_timeout=60, retry=Retry(NoBackoff(), 0))


@contextmanager
def connection_through(proxy: Proxy) -> Iterator[socket.socket]:
    """Connect without a library that connects again behind the test's back."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as connection:
        assert reply_to(connection, b"PING") == b"+PONG\r\n"
        yield connection


def reply_to(connection: socket.socket, command: bytes) -> bytes:
    connection.sendall(command + b"\r\n")
    return connection.recv(64)


def assert_no_reply_to(connection: socket.socket, command: bytes) -> None:
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        reply_to(connection, command)
    connection.settimeout(60)


@pytest.fixture
def proxy(five: Servers, proxy_for: Callable[[Server], Proxy]) -> Proxy:
    return proxy_for(five[0])


def test_a_proxy_forwards(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.set("key", b"x" * 1_000_000)
        assert client.get("key") == b"x" * 1_000_000
        assert proxy.connections == 1
    eventually(lambda: proxy.connections == 0)


@pytest.mark.parametrize("direction", ["requests", "replies"])
def test_a_delay_makes_one_direction_late_and_keeps_the_order(proxy: Proxy, direction: str) -> None:
    with client_of(proxy) as client:
        client.ping()
        getattr(proxy, direction).delay = 0.2
        before = time.monotonic()
        assert client.ping()
        assert time.monotonic() - before >= 0.19
        with client.pipeline(transaction=False) as pipe:
            pipe.set("key", 1).incr("key").get("key")
            assert pipe.execute() == [True, 2, b"2"]


def test_dropped_requests_never_arrive(five: Servers, proxy: Proxy) -> None:
    with connection_through(proxy) as connection, five[0].client() as direct:
        proxy.requests.drops = True
        assert_no_reply_to(connection, b"SET key value")
        assert direct.get("key") is None


def test_a_request_arrives_though_its_reply_is_dropped(five: Servers, proxy: Proxy) -> None:
    with connection_through(proxy) as connection, five[0].client() as direct:
        proxy.replies.drops = True
        assert_no_reply_to(connection, b"SET key value")
        eventually(lambda: direct.get("key") == b"value")


def test_a_black_hole_keeps_connections_open(five: Servers, proxy: Proxy) -> None:
    with connection_through(proxy) as connection, five[0].client() as direct:
        proxy.black_hole()
        assert_no_reply_to(connection, b"SET key value")
        assert proxy.connections == 1
        assert direct.get("key") is None


def test_a_half_open_connection_delivers_once_it_heals(five: Servers, proxy: Proxy) -> None:
    with connection_through(proxy) as connection, five[0].client() as direct:
        proxy.half_open()
        assert_no_reply_to(connection, b"SET key value")
        assert direct.get("key") is None
        assert proxy.connections == 1
        proxy.heal()
        assert connection.recv(64) == b"+OK\r\n"
        assert direct.get("key") == b"value"


def test_a_half_open_connection_fills_the_buffers_of_the_sender(proxy: Proxy) -> None:
    with connection_through(proxy) as connection:
        proxy.half_open()
        assert_no_reply_to(connection, b"ECHO " + b"x" * 100_000_000)


def test_a_scrambling_proxy_cuts_and_joins_what_arrives(proxy: Proxy) -> None:
    with connection_through(proxy) as connection:
        proxy.scramble(random.Random(1), 0.02)
        for number in range(100, 300):
            connection.sendall(b"ECHO %d\r\n" % number)
            time.sleep(0.002)
        expected = b"".join(b"$3\r\n%d\r\n" % number for number in range(100, 300))
        said = b""
        while len(said) < len(expected):
            said += connection.recv(64)
    assert said == expected
    for direction in (proxy.requests, proxy.replies):
        assert direction.cuts
        assert direction.joins


def test_a_reset_breaks_open_connections_and_admits_new_ones(proxy: Proxy) -> None:
    with connection_through(proxy) as connection:
        proxy.half_open()
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(64)
    proxy.heal()
    with connection_through(proxy):
        assert proxy.connections == 1


def test_a_connection_made_just_before_it_refuses_is_not_leaked(proxy: Proxy) -> None:
    for _ in range(20):
        with ExitStack() as stack:
            for _ in range(8):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", proxy.port))
            proxy.refuse()
        proxy.heal()
    gc.collect()  # pytest fails a test that leaves a socket unclosed


def test_a_refusing_proxy_keeps_the_connections_it_has(proxy: Proxy) -> None:
    with client_of(proxy) as old, client_of(proxy) as new:
        old.ping()
        proxy.refuse()
        assert old.ping()
        with pytest.raises(redis.ConnectionError):
            new.ping()
        proxy.heal()
        assert new.ping()


def test_a_proxy_breaks_connections_as_its_server_dies(five: Servers, proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.ping()
        five[0].kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        five[0].start()
        assert client.ping()


class SlowListener:
    """A listener whose connections are handed over when its node is closing."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._listener = node._listener
        self.accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = self._listener.accept()
        self.accepted.append(connection)
        eventually(lambda: self._node._is_closing)
        time.sleep(0.1)  # in which __exit__ may go on
        return connection, address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_fake_node_closes_what_it_accepts_as_it_ends() -> None:
    node = FakeNode()
    listener = SlowListener(node)
    node._listener = cast(socket.socket, listener)
    with node, socket.create_connection(listener.getsockname()):
        eventually(lambda: listener.accepted)
    assert [connection.fileno() for connection in listener.accepted] == [-1]


def test_shared_servers_recover_after_a_test_that_broke_them(
    request: pytest.FixtureRequest,
) -> None:
    broken: Servers = request.getfixturevalue("_shared_five")
    broken.reset()
    with broken[0].client() as client:
        client.set("key", "value")
    broken[1].kill()
    for server in request.getfixturevalue("five"):
        with server.client() as client:
            assert client.dbsize() == 0


def test_the_factory_starts_servers_with_arguments(servers: Callable[..., Servers]) -> None:
    with servers(2, "--maxmemory", "100mb")[1].client() as client:
        assert client.config_get("maxmemory") == {"maxmemory": "104857600"}


def test_a_node_that_was_a_replica_refuses_writes_and_loses_its_keys() -> None:
    with Server("--repl-diskless-sync-delay", "0") as master, new_node() as node:
        replicas = Replicas(master, 3.0)
        heal = replicas.nemesis(Victims([node], ["none"])).strike(random.Random(1))
        with node.client() as client:
            with pytest.raises(redis.ReadOnlyError):
                client.set("key", "value")
            heal()
            assert replicas.refused == 1
            client.set("key", "value")
            replicas.nemesis(Victims([node], ["none"])).strike(random.Random(1))()
            assert client.get("key") is None


@redis_versions
def test_a_stepped_wall_clock_moves_time_and_expiry(
    new_wall_clock: Callable[[], WallClock], redis_binary: Path
) -> None:
    clock = new_wall_clock()
    with Server(binary=redis_binary, env=clock.env) as server, server.client() as client:
        client.set("short", "", px=60_000)
        client.set("long", "", px=7_200_000)
        before = client.time()[0]
        clock.step(3600)
        # Valkey 9.1 looks at its clock some times a second only.
        eventually(lambda: 3600 <= client.time()[0] - before < 3660)
        assert client.get("short") is None
        assert 3_500_000 < client.pttl("long") <= 3_600_000
        clock.step(-7200)
        assert clock.offset == -3600
        eventually(lambda: -3600 <= client.time()[0] - before < -3540)
        assert client.pttl("long") > 7_200_000
        before_uptime = client.info("server")["uptime_in_seconds"]
        clock.step(7200)
        eventually(lambda: client.info("server")["uptime_in_seconds"] >= before_uptime + 7200)


def test_a_wall_clock_belongs_to_one_server(new_wall_clock: Callable[[], WallClock]) -> None:
    clocks = [new_wall_clock(), new_wall_clock()]
    with Servers(Server(env=clock.env) for clock in clocks) as pair:
        clocks[1].step(1000)
        with pair[0].client() as first, pair[1].client() as second:
            # Valkey 9.1 looks at its clock some times a second only.
            eventually(lambda: 990 < second.time()[0] - first.time()[0] < 1060)
