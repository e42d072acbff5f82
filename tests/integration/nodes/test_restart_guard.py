"""A node that was started lately may have forgotten a lock: it does not vote for a while."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import pytest
from click.testing import CliRunner

from celery_redlock.cli.alone import main
from celery_redlock.redlock import Lease, QuorumUnavailable
from celery_redlock.redlock.events import Event, NodeUp
from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock, StartServers
from tests.support.eventually import PATIENCE, eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.faults.clock_shim import WallClock
from tests.support.judges.nodes import assert_freed, holder_on, holders_on
from tests.support.locking import settle

GUARD = guard_s(max_ttl=60, max_clock_skew=1)


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def three(servers: StartServers) -> Servers:
    """Servers that have just been started."""
    return servers(3)


@pytest.fixture
def redlock(three: Servers, new_redlock: NewRedlock, clock: LeapingClock) -> TaskLock:
    """A client to which all nodes have been up for long."""
    redlock = new_redlock(three.urls, restart_guard=True, clock=clock)
    redlock.check()
    clock.leap(GUARD)
    return redlock


def uptime_of(server: Server) -> int:
    with server.client() as client:
        return int(client.info("server")["uptime_in_seconds"])


def reconnect(redlock: TaskLock, clock: LeapingClock, index: int) -> None:
    """Have the client notice that a node was restarted, and connect to it again."""
    node = redlock.nodes[index]
    before = node.run_id

    def is_back() -> bool:
        redlock.check()
        return node.run_id != before

    clock.leap(0.2)
    eventually(is_back)


def test_nodes_that_have_just_been_started_do_not_vote(
    three: Servers, new_redlock: NewRedlock, clock: LeapingClock
) -> None:
    redlock = new_redlock(three.urls, restart_guard=None, clock=clock)
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.acquire("k")
    for error in caught.value.errors.values():
        assert error.startswith("restarted or replaced lately, votes in ")
    assert len(caught.value.errors) >= 2
    assert holders_on(three, "k") == [None] * 3
    settle(redlock)
    clock.leap(GUARD - max(map(uptime_of, three)) - 20)
    with pytest.raises(QuorumUnavailable, match="restarted or replaced lately, votes in"):
        redlock.acquire("k")
    settle(redlock)
    clock.leap(GUARD)
    redlock.acquire("k").ensure()


@pytest.mark.parametrize("guard", [True, False])
def test_a_clock_set_back_does_not_lengthen_the_guard(
    new_wall_clock: Callable[[], WallClock],
    new_redlock: NewRedlock,
    clock: LeapingClock,
    guard: bool,
) -> None:
    wall_clock = new_wall_clock()
    with Server(env=wall_clock.env) as server:
        wall_clock.step(-36_000)
        eventually(lambda: uptime_of(server) < -30_000)
        redlock = new_redlock([server.url], restart_guard=guard, clock=clock)
        redlock.check()
        clock.leap(GUARD if guard else 0)
        redlock.acquire("k").ensure()


def test_a_node_that_has_been_up_for_long_votes_at_once(
    new_wall_clock: Callable[[], WallClock], new_redlock: NewRedlock
) -> None:
    wall_clock = new_wall_clock()
    with Servers(Server(env=wall_clock.env) for _ in range(3)) as three:
        wall_clock.step(3600)  # its uptime is the difference of two readings of its wall clock
        for server in three:
            eventually(lambda server=server: uptime_of(server) >= 3600)  # type: ignore[misc]
        new_redlock(three.urls, restart_guard=True).acquire("k").ensure()


def test_a_restarted_minority_changes_nothing_and_is_told(
    three: Servers, new_redlock: NewRedlock, clock: LeapingClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    redlock = new_redlock(three.urls, restart_guard=True, clock=clock, observers=[seen.append])
    redlock.check()
    clock.leap(GUARD)
    three[1].restart()
    seen.clear()
    caplog.clear()
    reconnect(redlock, clock, 1)
    lease = redlock.acquire("k")
    lease.ensure()
    redlock.release(lease)
    [event] = [event for event in seen if isinstance(event, NodeUp)]
    assert event.node == f"127.0.0.1:{three[1].port}"
    assert GUARD - 30 < event.votes_in <= GUARD
    assert f"node guarded node={event.node} votes_in_s=" in caplog.text


def test_a_restarted_node_is_asked_only_after_the_guard(
    three: Servers, redlock: TaskLock, clock: LeapingClock
) -> None:
    three[1].restart()
    reconnect(redlock, clock, 1)
    for number in range(5):
        lease = redlock.acquire(f"k{number}")
        assert holder_on(three[1], lease.key) is None
        redlock.release(lease)
    settle(redlock)
    clock.leap(GUARD)

    def is_granted_there() -> bool:
        lease = redlock.acquire("k")
        holder = holder_on(three[1], "k")
        redlock.release(lease)
        return holder == lease.owner

    eventually(is_granted_there)


def healed_after_a_restart(three: Servers, redlock: TaskLock, clock: LeapingClock) -> Lease:
    """Return a lease that the second node has again, inside its guard."""
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(three, "k") == [lease.owner] * 3)
    three[1].restart()
    reconnect(redlock, clock, 1)

    def is_healed() -> bool:
        redlock.extend(lease)
        return holder_on(three[1], "k") == lease.owner

    eventually(is_healed)
    return lease


def test_a_restarted_node_is_healed_extended_and_released(
    three: Servers, redlock: TaskLock, clock: LeapingClock
) -> None:
    lease = healed_after_a_restart(three, redlock, clock)
    for _ in range(4):
        clock.leap(GUARD / 4)
        redlock.extend(lease)
    three[0].kill()
    redlock.extend(lease)  # with its help
    redlock.release(lease)
    assert_freed(three[1:], "k")


EVERY_WRITE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def durable() -> Iterator[Server]:
    """A server that keeps every write, and has just been started."""
    with Server(*EVERY_WRITE) as server:
        yield server


def test_a_node_that_kept_every_write_waits_like_any_other(
    durable: Server, new_redlock: NewRedlock, clock: LeapingClock
) -> None:
    redlock = new_redlock([durable.url], restart_guard=True, clock=clock)
    assert redlock.check() != {}, "it is new"
    clock.leap(GUARD)
    redlock._pool.close()
    redlock.acquire("k")
    durable.restart()
    assert new_redlock([durable.url], restart_guard=True).check() != {}


def test_a_node_that_gets_its_first_replica_waits_like_any_other(
    three: Servers, redlock: TaskLock
) -> None:
    # As for a backup by `redis-cli --rdb`: the node's replication id changes, as that of a node
    # that was a replica itself does.
    assert redlock.check() == {}
    with socket.create_connection(("127.0.0.1", three[0].port)) as backup, three[0].client() as it:
        before = it.info("replication")["master_replid"]
        backup.sendall(b"SYNC\r\n")
        eventually(lambda: it.info("replication")["master_replid"] != before)
        it.execute_command("CLIENT", "KILL", "TYPE", "normal")
        eventually(redlock.check)
    assert list(redlock.check()) == [redlock.nodes[0].name]
    redlock.acquire("k").release()


def nodes_of(servers: Servers) -> list[str]:
    """Return the options of a command for these nodes, however slow the machine is."""
    return ["--node-timeout", "2", *(word for url in servers.urls for word in ("--node", url))]


def test_an_admitted_node_votes_until_it_restarts(
    three: Servers, new_redlock: NewRedlock, clock: LeapingClock
) -> None:
    waiting = new_redlock(three.urls, restart_guard=True, max_clock_skew=0.0, clock=clock)
    with pytest.raises(QuorumUnavailable, match="3 of 3 nodes answered, 0 may vote yet, 2 are"):
        waiting.acquire("k")
    nodes = nodes_of(three)
    admitted = CliRunner().invoke(main, [*nodes, "admit", "--yes"])
    assert (admitted.exit_code, admitted.output.count("votes in")) == (0, 3)
    # Its connections were made before.
    clock.leap(6)
    lease = waiting.acquire("k", wait=PATIENCE)
    three[1].restart()
    another = new_redlock(three.urls, restart_guard=True, max_clock_skew=0.0)
    eventually(lambda: len(another.check()) == 1)
    refused = CliRunner().invoke(main, [*nodes, "admit", "--yes"])
    assert refused.exit_code == 1
    assert "redlock:{k}" in refused.output
    waiting.release(lease)


def test_an_admission_is_for_its_nodes_addresses_and_leases(
    three: Servers, new_redlock: NewRedlock
) -> None:
    nodes = nodes_of(three)
    admitted = CliRunner().invoke(main, [*nodes, "--max-ttl", "600", "admit", "--yes"])
    assert admitted.exit_code == 0

    def waiting(urls: Sequence[str], max_ttl: float) -> set[str]:
        redlock = new_redlock(urls, restart_guard=True, max_clock_skew=0.0, max_ttl=max_ttl)
        return set(redlock.check())

    eventually(lambda: not waiting(three.urls, 600.0))
    assert not waiting(three.urls[::-1], 300.0), "in any order, for shorter leases"
    assert len(waiting(three.urls, 6000.0)) == 3
    assert len(waiting([three.urls[0]], 600.0)) == 1
    elsewhere = [three.urls[0].replace("127.0.0.1", "localhost"), *three.urls[1:]]
    assert len(waiting(elsewhere, 600.0)) == 3


def test_a_pause_beside_a_guarded_node_loses_no_lease(
    three: Servers, new_redlock: NewRedlock, clock: LeapingClock
) -> None:
    """The other two hold each lease, but their replies may lie unread in the sockets."""
    redlock = new_redlock(three.urls, restart_guard=True, clock=clock, node_timeout=0.05)
    redlock.check()
    clock.leap(GUARD)
    three[2].restart()
    reconnect(redlock, clock, 2)
    for number in range(50):
        lease = redlock.acquire(f"k{number}", wait=PATIENCE)
        other = redlock.acquire("other", wait=PATIENCE)
        # Two nodes confirm it, and whichever is the third then owes a reply.
        with suppress(QuorumUnavailable):
            redlock.release(other)
        time.sleep(0.07 + 0.02 * number / 50)
        lease.ensure()
