"""Connections that are dead without a sign, or all at once, and nodes that refuse new ones."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.redlock import ConfigurationError, LockHeld, QuorumUnavailable
from celery_redlock.testing import Server, Servers, free_port
from celery_redlock.testing.binaries import find_server_binary
from celery_redlock.testing.launch import launch
from tests.conftest import NewRedlock, ProxyFor, StartServers
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.faults.proxy import Proxy
from tests.support.judges.nodes import assert_freed, holders_on

CALLS = 60


@pytest.fixture
def proxies(five: Servers, proxy_for: ProxyFor) -> list[Proxy]:
    return [proxy_for(server) for server in five[:3]]


def urls(proxies: list[Proxy]) -> list[str]:
    return [proxy.url for proxy in proxies]


# ---- a firewall forgets connections that are idle


class Idle:
    """A client whose connections were idle until a firewall has forgotten them."""

    def __init__(self, new_redlock: NewRedlock, proxies: list[Proxy]) -> None:
        self.clock = LeapingClock()
        self.redlock = new_redlock(urls(proxies), clock=self.clock, node_timeout=1.0)
        self.proxies = proxies

    def be_idle(self) -> None:
        self.clock.leap(6)
        for proxy in self.proxies:
            proxy.forget()


@pytest.fixture
def idle(new_redlock: NewRedlock, proxies: list[Proxy]) -> Idle:
    return Idle(new_redlock, proxies)


def test_idle_connections_that_were_dropped_cost_no_lock(idle: Idle, five: Servers) -> None:
    for number in range(3):
        # Of one key, a release on its way to the third node would be lost with its connection.
        idle.redlock.release(idle.redlock.acquire(f"k{number}"))
        idle.be_idle()
    lease = idle.redlock.acquire("k")
    assert holders_on(five[:3], "k").count(lease.owner) >= 2
    idle.be_idle()
    idle.redlock.release(lease)
    assert not lease.lost
    assert_freed(five[:3], "k")


def test_a_lease_is_extended_after_its_connections_were_dropped(idle: Idle) -> None:
    lease = idle.redlock.acquire("k", ttl=60)
    idle.be_idle()
    began = time.monotonic()
    idle.redlock.extend(lease)
    assert lease.remaining() > 40
    assert time.monotonic() - began < 13, "a quarter of what is left is 13.4 s"
    idle.redlock.release(lease)


def test_questions_are_answered_after_connections_were_dropped(idle: Idle) -> None:
    lease = idle.redlock.acquire("k")
    idle.be_idle()
    assert idle.redlock.locked("k")
    idle.be_idle()
    assert idle.redlock.check() == {}
    idle.be_idle()
    assert idle.redlock.drop("k")
    assert not idle.redlock.locked(lease.key)


@pytest.mark.parametrize("call", ["acquire", "release", "extend", "ensure", "locked"])
def test_connections_forgotten_in_use_cost_no_call(
    call: str, five: Servers, new_redlock: NewRedlock, proxies: list[Proxy]
) -> None:
    """As where a firewall is restarted: nothing has been idle."""
    # Less than the five seconds after which a connection is given up.
    redlock = new_redlock(urls(proxies), node_timeout=2.0)
    lease = redlock.acquire("k", ttl=12)
    # Any two of the three are enough to extend it then.
    eventually(lambda: holders_on(five[:3], "k") == [lease.owner] * 3)
    for proxy in proxies:
        proxy.forget()
    if call == "acquire":
        redlock.release(redlock.acquire("another"))
    elif call == "locked":
        assert redlock.locked("k")
    elif call == "ensure":
        lease.ensure()
    else:
        getattr(redlock, call)(lease)
    assert not lease.lost


def test_a_hung_majority_is_no_reason_for_two_holders(
    five: Servers, new_redlock: NewRedlock
) -> None:
    """It takes each new connection, and answers late: on the old ones a grant, and its release."""
    clock = LeapingClock()
    redlock = new_redlock(five.urls[:3], clock=clock, node_timeout=1.0)
    redlock.release(redlock.acquire("k"))
    clock.leap(6)
    for server in five[:2]:
        server.pause()
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    for server in five[:2]:
        server.resume()
    assert_freed(five[:3], "k")
    redlock.release(redlock.acquire("k", wait=60))


# ---- all nodes close their connections at once


def test_connections_closed_by_all_nodes_cost_no_call(
    new_redlock: NewRedlock, proxies: list[Proxy]
) -> None:
    """As a sidecar does when it is reloaded: just after they were used."""
    # An extension needs the third node where another had not granted, and waits for it so long.
    redlock = new_redlock(urls(proxies), node_timeout=10.0)
    for number in range(CALLS):
        # Of one key, a release on its way to the third node would be lost with its connection.
        lease = redlock.acquire(f"k{number}")
        close_all(proxies)
        redlock.extend(lease)
        close_all(proxies)
        redlock.release(lease)
        assert not lease.lost
        close_all(proxies)


def close_all(proxies: list[Proxy]) -> None:
    for proxy in proxies:
        proxy.reset()


def test_an_extension_outlasts_connections_closed_in_flight(
    five: Servers, new_redlock: NewRedlock, proxies: list[Proxy]
) -> None:
    grant_to_a_rival(five[2])
    lease = new_redlock(urls(proxies), node_timeout=1.0).acquire("k", ttl=60, wait=60)
    chance = random.Random(1)
    for _ in range(20):
        cut = threading.Timer(chance.uniform(0.0, 0.002), close_all, [proxies])
        cut.start()
        lease.extend()
        cut.join()


def grant_to_a_rival(server: Server) -> None:
    """Have a node out of three hold the grant of a rival that fails: both others are needed."""
    with server.client() as rival:
        rival.set("redlock:{k}", f"{'f' * 32}:rival@host", px=600_000)


def test_an_extension_reconnects_if_an_answer_does_not_count(
    five: Servers, new_redlock: NewRedlock
) -> None:
    lease = new_redlock(five.urls[:3], node_timeout=1.0).acquire("k")
    grant_to_a_rival(five[2])
    with five[0].client() as closing:
        for confirm in (lease.extend, lease.ensure):
            closing.client_kill_filter(_type="normal", skipme=True)
            confirm()


def test_a_grant_whose_reply_was_lost_holds_nobody_off(
    five: Servers, new_redlock: NewRedlock, proxies: list[Proxy]
) -> None:
    redlock = new_redlock(urls(proxies))
    for _ in range(10):
        redlock.release(redlock.acquire("k"))
        # The nodes execute what comes, and the connections close before they answer.
        for proxy in proxies:
            proxy.replies.holds = True
        before = sum(proxy.requests.reads for proxy in proxies)
        cut = threading.Thread(target=lambda before=before: cut_off(five, proxies, before))
        cut.start()
        # The cut may strike a new connection as well.
        lease = redlock.acquire("k", wait=60)
        cut.join()
        redlock.release(lease)
        assert_freed(five[:3], "k")


def cut_off(five: Servers, proxies: list[Proxy], before: int) -> None:
    eventually(lambda: sum(proxy.requests.reads for proxy in proxies) >= before + 2)
    eventually(lambda: holders_on(five[:3], "k").count(None) <= 1, "a majority has granted it")
    close_all(proxies)
    for proxy in proxies:
        proxy.replies.holds = False


# ---- names with several addresses


@pytest.fixture
def behind_black_hole(
    five: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Server], str]]:
    """Return URLs of a name whose first address takes no connection, and refuses none."""
    resolve = socket.getaddrinfo
    with ExitStack() as stack:

        def resolve_name(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            if host != "two-addresses.test":
                return resolve(host, port, *args, **kwargs)
            kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
            return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

        def url_of(server: Server) -> str:
            hole = stack.enter_context(socket.socket())
            hole.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            hole.bind(("127.0.0.2", server.port))
            hole.listen(0)
            # The kernel drops what comes to a full backlog.
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", server.port))
            return f"redis://two-addresses.test:{server.port}"

        monkeypatch.setattr(socket, "getaddrinfo", resolve_name)
        yield url_of


def test_a_first_address_that_drops_everything_costs_no_lock(
    five: Servers, new_redlock: NewRedlock, behind_black_hole: Callable[[Server], str]
) -> None:
    redlock = new_redlock([behind_black_hole(server) for server in five[:3]], node_timeout=1.0)
    redlock.release(redlock.acquire("k"))
    redlock.close()
    redlock.release(redlock.acquire("k"))


# ---- nodes that refuse connections


def test_the_words_of_a_full_node_are_the_reason(new_redlock: NewRedlock) -> None:
    with ExitStack() as stack:
        full = stack.enter_context(Server("--maxclients", "1"))
        eventually(lambda: occupies(stack.enter_context(connected_to(full))))
        for _ in range(24):
            with pytest.raises(QuorumUnavailable, match="max number of clients reached"):
                new_redlock([full.url]).acquire("k")


def connected_to(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def occupies(connection: socket.socket) -> bool:
    """Tell whether the server has taken a connection: it may not have seen the last one's end."""
    with suppress(OSError):
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


def address_of_this_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.skipif(address_of_this_machine().startswith("127."), reason="no other address")
def test_the_words_of_a_protected_node_are_the_reason(new_redlock: NewRedlock) -> None:
    with Server("--protected-mode", "yes", "--bind", "0.0.0.0") as node:  # noqa: S104
        url = f"redis://{address_of_this_machine()}:{node.port}"
        for _ in range(24):
            with pytest.raises(QuorumUnavailable, match=r"DENIED .*protected mode"):
                new_redlock([url]).acquire("k")


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[str]:
    """The URL of a Sentinel."""
    port = free_port()
    conf = tmp_path / "sentinel.conf"
    conf.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    process = launch([str(find_server_binary()), str(conf), "--sentinel"], tmp_path / "log", {})

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(listens)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def test_a_sentinel_is_refused(sentinel: str, five: Servers, new_redlock: NewRedlock) -> None:
    with_password = sentinel.replace("redis://", "redis://user:secret@")
    for url in (sentinel, f"{sentinel}/2", with_password):
        with pytest.raises(ConfigurationError, match="is a Sentinel"):
            new_redlock([url]).acquire("k")
    with pytest.raises(ConfigurationError, match="is a Sentinel"):
        new_redlock([sentinel, *five.urls[:2]]).check()


# ---- back-off


def test_waiting_threads_share_attempts_to_connect(
    servers: StartServers, new_redlock: NewRedlock
) -> None:
    """The nodes accept connections and refuse the handshake, for want of a password."""
    three = servers(3, "--requirepass", "secret")
    redlock = new_redlock(three.urls, node_timeout=0.25, max_connections=20)

    def wait() -> None:
        with pytest.raises(QuorumUnavailable):
            redlock.acquire("k", wait=3)

    threads = [threading.Thread(target=wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in three:
        with server.client(password="secret") as client:  # noqa: S106
            connections = client.info("stats")["total_connections_received"]
        assert connections < 20 + 40, "one for each channel, then one for each pause"


def test_a_recovery_is_noticed_by_the_next_call(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls[:3])
    redlock.release(redlock.acquire("k"))
    for server in five[:3]:
        server.kill()
    for _ in range(10):
        with pytest.raises(QuorumUnavailable):
            redlock.acquire("k")
    for server in five[:3]:
        server.start()
    redlock.release(redlock.acquire("k"))


# ---- nodes that become unfit while the process runs


def test_a_node_that_becomes_a_replica_and_back_costs_no_call(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    running = new_redlock(five.urls[:3], clock=clock)
    running.check()
    with five[1].client() as client:
        client.replicaof("127.0.0.1", five[3].port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        for number in range(20):
            started_now = new_redlock(five.urls[:3])
            for redlock in (running, started_now):
                lease = redlock.acquire(f"k{number}")
                with pytest.raises(LockHeld):
                    redlock.acquire(f"k{number}")
                redlock.release(lease)
        assert "is a slave" in running.check()[f"127.0.0.1:{five[1].port}"]
        client.execute_command("REPLICAOF", "NO", "ONE")

    def is_well() -> bool:
        clock.leap(5)
        return not running.check()

    eventually(is_well)


def test_no_connection_outlives_the_time_as_a_replica(
    five: Servers, new_redlock: NewRedlock
) -> None:
    """One that was idle meanwhile knows nothing of it; the process does."""
    clock = LeapingClock()
    redlock = new_redlock(five.urls[:3], clock=clock, restart_guard=True, max_ttl=30)
    redlock.check()
    clock.leap(60)
    with redlock._pool.channel() as idle:
        assert idle.voters() == [0, 1, 2]
        with five[1].client() as client:
            client.replicaof("127.0.0.1", five[3].port)
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
            # On a new connection, which finds the replica.
            redlock.release(redlock.acquire("k"))
            eventually(lambda: redlock.nodes[1].error)
            client.execute_command("REPLICAOF", "NO", "ONE")
        clock.leap(2)
        idle.prepare()
        assert 1 not in idle.voters()


def test_a_node_that_was_a_replica_waits_for_its_guard(
    five: Servers, new_redlock: NewRedlock
) -> None:
    """It has taken over its master's data: the locks that it held are gone."""
    clock = LeapingClock()
    redlock = new_redlock(five.urls[:3], clock=clock, restart_guard=True, max_ttl=30)
    redlock.check()
    clock.leap(60)
    assert redlock.check() == {}

    def why() -> str:
        clock.leap(1)
        return redlock.check().get(f"127.0.0.1:{five[1].port}", "")

    with five[1].client() as client:
        client.replicaof("127.0.0.1", five[3].port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
        redlock.release(redlock.acquire("k"))
        # What a quorum had decided without it may reach the server late: as a master again.
        eventually(why)
        client.execute_command("REPLICAOF", "NO", "ONE")
    eventually(lambda: why().startswith("restarted or replaced lately"))
