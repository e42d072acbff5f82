"""Nodes whose wall clocks are wrong: tokens still grow, and leases stay what they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Server, Servers
from tests.support.clock_shim import WallClock
from tests.support.eventually import eventually
from tests.support.nodes import floors_on, holder_on, holders_on, ms_left_on

NewRedlock = Callable[..., Redlock]
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


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_node_takes_no_token_far_from_its_own_clock(
    nodes: Nodes, new_redlock: NewRedlock, skew: float
) -> None:
    nodes.clocks[0].step(skew)
    single = new_redlock(nodes.servers.urls[:1], max_clock_skew=1.0)
    before = nodes.now_us(0)
    lease = single.acquire("k")
    assert before - 1_000_000 <= lease.token <= nodes.now_us(0) + 1_000_000


def test_a_clock_that_is_ahead_is_followed_by_a_confirmed_majority(
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


def test_a_clock_that_is_behind_takes_on_the_others_token(nodes: Nodes, redlock: Redlock) -> None:
    nodes.clocks[2].step(-HOUR)
    redlock.check()
    nodes.servers[0].pause()
    lease = redlock.acquire("k")
    assert floors_on(nodes.servers[1:], "k") == [lease.token] * 2
    assert abs(lease.token - nodes.now_us(1)) < 600e6
    lease.ensure()


@pytest.mark.parametrize("skews", [(0, 20, -20), (HOUR, 0, -HOUR), (5, 5, -1.5), (-1, 0.5, 0)])
def test_tokens_grow_whichever_majority_answers(
    nodes: Nodes, new_redlock: NewRedlock, skews: tuple[float, ...]
) -> None:
    for clock, skew in zip(nodes.clocks, skews, strict=True):
        clock.step(skew)
    clients = [new_redlock(nodes.servers.urls, node_timeout=10.0) for _ in range(2)]
    for client in clients:
        client.check()
    chance = random.Random(1)
    tokens = []
    for _ in range(20):
        hung = chance.choice(nodes.servers)
        hung.pause()
        client = chance.choice(clients)
        lease = client.acquire("k", wait=60)
        tokens.append(lease.token)
        if chance.random() < 0.8:
            client.release(lease)
            hung.resume()
        else:
            hung.resume()
            client.extend(lease)
            client.release(lease)
    assert tokens == sorted(set(tokens))


def test_a_clock_that_is_stepped_expires_the_lock_of_its_node_and_no_more(
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
