"""A grant that is still under way to a slow node while its lease is given back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import redis

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.faults.proxy import Proxy
from tests.support.judges.nodes import expire_on, floor_on, holder_on, holders_on

LATE_S = 0.5


def occupy(redlock: Redlock, channel: object) -> None:
    """Have another thread use the channel for a moment, as another acquisition does."""
    is_used = threading.Event()

    def use() -> None:
        with redlock._pool.channel(channel):
            is_used.set()
            time.sleep(LATE_S / 5)

    threading.Thread(target=use, daemon=True).start()
    assert is_used.wait(60)


def test_a_release_never_overtakes_its_grant(
    five: Servers, new_redlock: NewRedlock, proxy_for: Callable[[Server], Proxy]
) -> None:
    slow, proxy = five[4], proxy_for(five[4])
    redlock = new_redlock([*five.urls[:4], proxy.url])
    # Two channels, each with all of its connections.
    leases = [redlock.acquire(key) for key in ("one", "two")]
    with redlock._pool.channel(leases[0].backing.channel):
        redlock.release(leases[1])
    redlock.release(leases[0])
    proxy.requests.delay = LATE_S
    lease = redlock.acquire("k")
    proxy.requests.delay = 0.0
    occupy(redlock, lease.backing.channel)
    redlock.release(lease)
    # Whichever comes first, by now the slow node has both.
    time.sleep(3 * LATE_S)
    # On a busy machine a little later, but before the grant's ttl of 30 s ends.
    as_released = None, lease.token + 1
    eventually(lambda: (holder_on(slow, "k"), floor_on(slow, "k")) == as_released, within=25)


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_hand_over_after_its_successors_run_leaves_nothing(
    five: Servers,
    new_redlock: NewRedlock,
    proxy_for: Callable[[Server], Proxy],
    has_expired: bool,
) -> None:
    slow, proxy = five[4], proxy_for(five[4])
    redlock, successor = new_redlock([*five.urls[:4], proxy.url]), new_redlock(five.urls)
    lease = redlock.acquire("k")
    eventually(lambda: holder_on(slow, "k") == lease.owner)
    proxy.requests.holds = True
    redlock.reserve(
        "k", 3600, supersedes=lease.owner, owner="told:task@host", highest_floor=lease.token
    )
    redlock.release(lease)
    if has_expired:
        expire_on([slow], "k")
    run = successor.acquire_for_task("k", supersedes="told:task@host")
    successor.release(run)
    eventually(lambda: floor_on(slow, "k") == run.token + 1)
    assert holder_on(slow, "k") == (None if has_expired else lease.owner)
    proxy.requests.holds = False
    # On the same connection, behind all that was held up.
    redlock.release(redlock.acquire("behind"))
    eventually(lambda: floor_on(slow, "behind"))
    assert holders_on(five, "k") == [None] * 5


def is_empty(node: redis.Redis) -> bool:
    return not list(node.scan_iter("*}"))


def test_no_key_is_left_by_threads_that_share_their_connections(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls[:3])
    until = time.monotonic() + 2

    def work(name: int) -> None:
        while time.monotonic() < until:
            lease = redlock.acquire(f"k{name}")
            time.sleep(random.uniform(0, 0.01))
            redlock.release(lease)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(16)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        five[2].pause()
        time.sleep(0.03)
        five[2].resume()
        time.sleep(0.03)
    for thread in threads:
        thread.join()
    for server in five[:3]:
        with server.client() as client:
            eventually(partial(is_empty, client), within=25)
