"""Connections that are cut off, and servers that forget their scripts."""

from __future__ import annotations

import select
import threading
import time

import pytest

from celery_redlock.redlock import LockHeld, QuorumUnavailable
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock, ProxyFor
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock, StandingClock
from tests.support.judges.nodes import (
    expire_on,
    holder_on,
    ms_left_on,
)
from tests.support.locking import assert_all_is_well, channel_of


def are_all_broken(redlock: TaskLock) -> bool:
    """Whether the news has arrived at every socket, which nobody has looked at yet."""
    poll = select.poll()
    connections = [
        connection for connection in channel_of(redlock)._connections.by_node if connection
    ]
    for connection in connections:
        poll.register(connection.fd, 0)  # errors are told unasked
    return len(poll.poll(0)) == len(connections)


# ---- cut off


def test_a_connection_that_is_reset_is_made_anew(
    five: Servers, new_redlock: NewRedlock, proxy_for: ProxyFor
) -> None:
    proxies = [proxy_for(server) for server in five]
    clock = LeapingClock()
    urls = [proxy.url for proxy in proxies]
    redlock, rival = (new_redlock(urls, clock=clock) for _ in range(2))
    for _ in range(3):
        assert_all_is_well(redlock, rival)
        for proxy in proxies:
            proxy.reset()
        for client in (redlock, rival):
            eventually(lambda client=client: are_all_broken(client))  # type: ignore[misc]
        clock.leap(1)


def test_connections_reset_during_a_request_cost_that_request(
    five: Servers, new_redlock: NewRedlock, proxy_for: ProxyFor
) -> None:
    proxies = [proxy_for(server) for server in five]
    redlock, rival = (new_redlock([proxy.url for proxy in proxies]) for _ in range(2))
    for _ in range(3):
        for proxy in proxies:
            proxy.reset()
        for client in (redlock, rival):
            try:
                client.release(client.acquire("k"))
            except QuorumUnavailable:
                client.release(client.acquire("k", wait=60))
        assert_all_is_well(redlock, rival)


def test_a_half_open_connection_is_given_up_and_made_anew(
    five: Servers, new_redlock: NewRedlock, proxy_for: ProxyFor
) -> None:
    clock = LeapingClock()
    proxy = proxy_for(five[0])
    redlock = new_redlock([proxy.url, *five.urls[1:]], clock=clock)
    redlock.release(redlock.acquire("k"))
    proxy.half_open()
    redlock.release(redlock.acquire("k"))
    clock.leap(10)
    redlock.release(redlock.acquire("k"))
    assert channel_of(redlock)._connections.by_node[0] is None
    assert redlock.nodes[0].error == "it has not answered for 5 s"
    proxy.heal()

    def is_granted_there() -> bool:
        clock.leap(10)  # past the back-off
        lease = redlock.acquire("k")
        holder = holder_on(five[0], "k")
        redlock.release(lease)
        return holder == lease.owner

    eventually(is_granted_there)


def test_a_node_that_reads_nothing_blocks_nobody_and_is_dropped(
    five: Servers, new_redlock: NewRedlock, proxy_for: ProxyFor
) -> None:
    clock = StandingClock()  # a silent node is dropped after 5 s
    proxy = proxy_for(five[0])
    redlock = new_redlock([proxy.url, *five.urls[1:]], node_timeout=1000, clock=clock)
    leases = [redlock.acquire(f"k{i}") for i in range(50)]
    connection = channel_of(redlock)._connections.by_node[0]
    assert connection
    proxy.half_open()
    before = time.monotonic()
    for _ in range(100):
        if connection.is_blocked:
            break
        assert redlock.extend_all(leases * 50) == [None] * 2500
    assert connection.is_blocked, "its buffers are full"
    assert redlock.extend_all(leases) == [None] * 50
    redlock.release(redlock.acquire("k"))
    assert time.monotonic() - before < 1000
    clock.leap(10)
    redlock.release(redlock.acquire("k"))
    assert channel_of(redlock)._connections.by_node[0] is None


# ---- forgetful


def test_scripts_lost_before_the_first_request_are_loaded_again(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    redlock.check()
    for server in five:
        with server.client() as client:
            client.script_flush()
    redlock.release(redlock.acquire("k"))


def test_scripts_that_a_server_forgot_are_loaded_again(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock, rival = new_redlock(five.urls), new_redlock(five.urls)

    def flush() -> None:
        for server in five:
            with server.client() as client:
                client.script_flush()

    for _ in range(3):
        flush()
        first = redlock.acquire("k")
        flush()
        with pytest.raises(LockHeld):
            rival.acquire("k")
        flush()
        first.ensure()
        flush()
        redlock.release(first)
        flush()
        rival.release(rival.acquire("k"))
        # A release that a node of the minority was asked for last finds its script gone.
        expire_on(five, "k")


def test_a_script_flush_in_the_middle_of_a_batch_costs_nothing(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls[:1], node_timeout=100)
    leases = [redlock.acquire(f"k{i}", ttl=20) for i in range(256)]
    outcomes: list[object] = []
    for _ in range(10):
        redlock.extend(leases[0])  # it knows the scripts
        with five[0].client() as client:
            client.ping()
            five[0].pause()
            thread = threading.Thread(target=lambda: outcomes.extend(redlock.extend_all(leases)))
            thread.start()
            # The server reads 16 KB from each client in turn: the flush comes somewhere between.
            thread.join(0.01)
            flush = threading.Thread(target=client.script_flush)
            flush.start()
            thread.join(0.01)
            five[0].resume()
            flush.join()
        thread.join()
    assert outcomes == [None] * 2560
    assert all(ms_left_on(five[0], lease.key) > 0 for lease in leases)
