"""Nodes whose wall clocks are wrong: tokens still grow, and leases stay what they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld, Redlock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.faults.clock_shim import WallClock
from tests.support.judges.nodes import expire_on, floors_on, holder_on, holders_on, ms_left_on

HOUR = 3600.0


class Nodes:
    """Three nodes and their wall clocks."""

    def __init__(self, servers: Servers, clocks: list[WallClock]) -> None:
        self.servers = servers
        self.clocks = clocks

    def now_us(self, index: int) -> int:
        with self.servers[index].client() as client:
            seconds, microseconds = client.time()
        return int(seconds) * 1_000_000 + int(microseconds)


@pytest.fixture
def nodes(new_wall_clock: Callable[[], WallClock]) -> Iterator[Nodes]:
    clocks = [new_wall_clock() for _ in range(3)]
    with Servers(Server(env=clock.env) for clock in clocks) as servers:
        yield Nodes(servers, clocks)


@pytest.fixture
def redlock(nodes: Nodes, new_redlock: NewRedlock) -> Redlock:
    return new_redlock(nodes.servers.urls, max_clock_skew=1.0)


def test_a_token_from_a_clock_ahead_is_confirmed_by_a_majority(
    nodes: Nodes, redlock: Redlock
) -> None:
    nodes.clocks[2].step(HOUR)
    redlock.check()
    nodes.servers[0].pause()
    lease = redlock.acquire("k")
    assert lease.token > nodes.now_us(1) + HOUR * 1e6 / 2
    # The other one granted a lower token, and has confirmed this one.
    assert floors_on(nodes.servers[1:], "k") == [lease.token] * 2
    redlock.release(lease)
    nodes.servers[0].resume()
    nodes.servers[2].pause()
    second = redlock.acquire("k", wait=60)
    assert second.token > lease.token, "though the node that is ahead was not asked"


def test_stepped_clocks_of_a_quorum_admit_a_second_holder(
    nodes: Nodes, new_redlock: NewRedlock
) -> None:
    """Steps within the allowed skew do so already."""
    # The limit that the docs state: the skew is for tokens, exclusion allows no step.
    first, second = (new_redlock(nodes.servers.urls, max_clock_skew=60) for _ in range(2))
    lease = first.acquire("k", ttl=30)
    eventually(lambda: holders_on(nodes.servers, "k") == [lease.owner] * 3)
    for clock in nodes.clocks[:2]:
        clock.step(31)
    assert lease.remaining() > 0
    rival = second.acquire("k", ttl=30, wait=20)
    assert not lease.lost, "nobody has told it"
    assert rival.token > lease.token, "what is protected by the token still is"
    with pytest.raises(LeaseLost):
        lease.ensure()


def test_one_stepped_clock_lets_in_nobody(nodes: Nodes, new_redlock: NewRedlock) -> None:
    first, second = (new_redlock(nodes.servers.urls) for _ in range(2))
    lease = first.acquire("k", ttl=30)
    eventually(lambda: holders_on(nodes.servers, "k") == [lease.owner] * 3)
    nodes.clocks[1].step(HOUR)
    with pytest.raises(LockHeld):
        second.acquire("k")
    lease.ensure()


def test_tokens_rise_though_clocks_step_within_the_skew(
    nodes: Nodes, new_redlock: NewRedlock
) -> None:
    clients = [new_redlock(nodes.servers.urls, max_clock_skew=60) for _ in range(2)]
    chance = random.Random(2)
    tokens = []
    for number in range(20):
        for clock in nodes.clocks:
            clock.step(chance.uniform(-60, 60) - clock.offset)
        lease = clients[number % 2].acquire("k", ttl=30, wait=60)
        tokens.append(lease.token)
        if chance.random() < 0.5:
            clients[number % 2].release(lease)
        else:
            expire_on(nodes.servers, "k")
    assert tokens == sorted(set(tokens))


def test_a_stepped_clock_expires_the_lock_of_its_node_only(
    nodes: Nodes, redlock: Redlock, new_redlock: NewRedlock
) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(nodes.servers, "k") == [lease.owner] * 3)
    nodes.clocks[1].step(HOUR)
    assert holder_on(nodes.servers[1], "k") is None
    lease.ensure()
    eventually(lambda: holders_on(nodes.servers, "k") == [lease.owner] * 3)
    assert ms_left_on(nodes.servers[1], "k") <= 30_000
    redlock.release(lease)
    assert new_redlock(nodes.servers.urls).acquire("k", wait=60).token > lease.token
