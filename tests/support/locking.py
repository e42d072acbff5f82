"""Using locks in tests, and looking inside a client of one thread."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.testing import Server

from .eventually import eventually
from .faults.proxy import Proxy


def name_of(server: Server | Proxy) -> str:
    """Return how errors and events name a node."""
    return f"127.0.0.1:{server.port}"


def channel_of(redlock: Redlock) -> Channel:
    """Return the channel of a client that one thread uses."""
    [channel] = redlock._pool._idle
    return channel


def sent_to(redlock: Redlock, index: int) -> int:
    """Return how many requests were sent to a node on its present connection."""
    connection = channel_of(redlock)._connections.by_node[index]
    assert connection
    return connection.sent


def settle(redlock: Redlock, *hung: int) -> None:
    """Have all replies read but those of hung nodes: a leap of the clock would make them late."""
    channel = channel_of(redlock)

    def owe_nothing() -> bool:
        channel._read_owed(0.0)
        return all(
            connection is None or connection.sent == connection.received
            for index, connection in enumerate(channel._connections.by_node)
            if index not in hung
        )

    eventually(owe_nothing)


def assert_all_is_well(redlock: Redlock, rival: Redlock) -> None:
    """Do everything a lock can do."""
    first = redlock.acquire("well")
    with pytest.raises(LockHeld) as caught:
        rival.acquire("well")
    assert caught.value.owner == first.owner
    first.ensure()
    redlock.extend(first)
    redlock.release(first)
    second = rival.acquire("well")
    assert second.token > first.token
    rival.release(second)
