"""A node that lies or babbles: one vote is lost, not more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import NewRedlock, StartServers
from tests.support.eventually import PATIENCE, eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.fakes.fake_node import FakeNode, Says, bulk

CHUNK = 1 << 16


def garbage() -> Iterator[bytes]:
    chance = random.Random(1)
    while True:
        yield chance.randbytes(CHUNK)


BABBLE: dict[str, Callable[[], Says]] = {
    "replies": lambda: itertools.repeat(b":1\r\n" * 1000),
    "one reply too many": lambda: b":1\r\n:1\r\n",
    "pushes": lambda: itertools.repeat(b">2\r\n:1\r\n:2\r\n" * 1000),
    "a huge bulk": lambda: itertools.chain([b"$500000000\r\n"], itertools.repeat(b"x" * CHUNK)),
    "a huge array": lambda: b"*1000000000\r\n",
    "huge arrays": lambda: b"*1000000\r\n" * 9,
    "a deep array": lambda: b"*1\r\n" * 1_000_000,
    "an endless line": lambda: itertools.chain([b"+"], itertools.repeat(b"x" * CHUNK)),
    "garbage": garbage,
    "the highest token": lambda: b"*3\r\n:1\r\n:%d\r\n:0\r\n" % (2**63 - 1),
    "a token below zero": lambda: b"*3\r\n:1\r\n:-1\r\n:0\r\n",
    "an error as long as a book": lambda: b"-ERR " + b"x" * 900_000 + b"\r\n",
    "a holder as long as a book": lambda: b"*4\r\n:0\r\n" + bulk("x" * 900_000) + b":1\r\n:1\r\n",
}


@pytest.fixture
def babbling() -> Iterator[FakeNode]:
    with FakeNode() as node:
        yield node


@pytest.mark.long
@pytest.mark.parametrize("kind", BABBLE)
def test_a_node_that_babbles_is_one_vote_lost(
    servers: StartServers, new_redlock: NewRedlock, babbling: FakeNode, kind: str
) -> None:
    two = servers(2)
    clock = LeapingClock()
    redlock = new_redlock([*two.urls, babbling.url], clock=clock)
    redlock.check()
    babbling.answers["EVALSHA"] = lambda _: BABBLE[kind]()
    before = redlock.clock.wall_us()
    with redlock.lock("k", ttl=60) as held:
        for number in range(5):
            lease = redlock.acquire(f"k{number}")
            assert before <= lease.token <= redlock.clock.wall_us()
            lease.ensure()
            redlock.release(lease)
        # Renewed by the keeper, over connections of its own.
        for _ in range(2):
            deadline = held.deadline
            clock.leap(25)
            eventually(lambda before=deadline: held.deadline > before)  # type: ignore[misc]
        held.ensure()
    assert "EVALSHA" in babbling.heard_names()


@pytest.mark.parametrize("kind", [kind for kind in BABBLE if "token" not in kind])
def test_a_node_that_babbles_when_it_is_met_is_one_vote_lost(
    servers: StartServers, new_redlock: NewRedlock, babbling: FakeNode, kind: str
) -> None:
    babbling.answers["INFO"] = lambda _: BABBLE[kind]()
    redlock = new_redlock([*servers(2).urls, babbling.url], node_timeout=0.5)
    lease = redlock.acquire("k", wait=PATIENCE)
    lease.ensure()
    redlock.release(lease)
    # One of the others may be too slow once.
    eventually(lambda: redlock.check().keys() == {redlock.nodes[2].name})
