"""Extending a lease while real nodes die, restart and answer late."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from celery_redlock.redlock import LeaseLost
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.faults.proxy import Proxy
from tests.support.judges.nodes import (
    floor_on,
    holders_on,
)


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def redlock(five: Servers, new_redlock: NewRedlock, clock: LeapingClock) -> TaskLock:
    return new_redlock(five.urls, clock=clock)


# ---- healing


def test_a_healed_node_counts_at_the_next_extension(five: Servers, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    five[0].restart()
    five[1].restart()

    def is_healed() -> bool:
        redlock.extend(lease)
        return holders_on(five[:2], "k") == [lease.owner] * 2

    eventually(is_healed)
    assert floor_on(five[0], "k") == lease.token
    # It needs them now.
    five[2].kill()
    five[3].kill()
    redlock.extend(lease)
    lease.ensure()


@pytest.mark.parametrize("keep", [0, 600])
def test_an_extension_under_way_does_not_revive_a_released_lock(
    five: Servers,
    new_redlock: NewRedlock,
    rival: TaskLock,
    proxy_for: Callable[[Server], Proxy],
    keep: float,
) -> None:
    proxies = [proxy_for(server) for server in five]
    slow = new_redlock([proxy.url for proxy in proxies], node_timeout=100)
    slow.release(slow.acquire("other"))
    lease = rival.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    for proxy in proxies:
        proxy.requests.holds = True
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.extend(slow.extend_all([lease])))
    thread.start()
    channel = slow._pool._idle
    eventually(lambda: not channel, "its extension is on its way")
    rival.release(lease, keep=keep)
    eventually(lambda: all(floor_on(server, "k") > lease.token for server in five))
    for proxy in proxies:
        proxy.requests.holds = False
    thread.join()
    assert isinstance(outcome[0], LeaseLost)
    assert holders_on(five, "k") == [lease.owner if keep else None] * 5
    if not keep:
        rival.acquire("k").ensure()


# ---- kept


def test_the_keeper_renews_through_the_death_of_a_minority(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    with redlock.lock("k", ttl=3) as lease:
        first = lease.deadline
        five[0].kill()
        five[1].pause()
        eventually(lambda: lease.deadline > first)
        second = lease.deadline
        eventually(lambda: lease.deadline > second)
        assert not lease.lost
