"""Nodes that are full under `noeviction`: what is held stays held, and is given back."""

from __future__ import annotations

import pytest
import redis

from celery_redlock.redlock import QuorumUnavailable
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock, StartServers
from tests.support.judges.nodes import assert_freed, holders_on, ms_left_on, set_ttl_on


@pytest.fixture
def three(servers: StartServers) -> Servers:
    return servers(3, "--maxmemory", "8mb", "--maxmemory-policy", "noeviction")


def fill(server: Server) -> None:
    """Store far more than the server may have: a script that has written may go on."""
    script = "for i = 1, 200 do redis.call('SET', KEYS[1] .. i, ARGV[1]) end"
    with server.client() as client:
        client.eval(script, 1, "other:", "x" * 100_000)
        with pytest.raises(redis.ResponseError, match="used memory"):
            client.set("one", "more")


def test_a_lease_on_full_nodes_is_extended_and_released(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls)
    lease = redlock.acquire("k", ttl=30)
    for server in three:
        fill(server)
    set_ttl_on(three, "k", 20)
    for _ in range(3):
        lease.ensure()
    assert holders_on(three, "k") == [lease.owner] * 3
    assert sum(ms_left_on(server, "k") > 20_000 for server in three) >= 2
    with pytest.raises(QuorumUnavailable, match="OOM"):
        redlock.acquire("another")
    redlock.release(lease, done="task")
    assert_freed(three, "k")
