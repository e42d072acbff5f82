"""Other Python locks on the same servers: for information, those that are installed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from celery_redlock.testing import Servers
from tests.conftest import NewRedlock

from .hop import DISTANCES, reached
from .measure import Report, interleaved

# Their own code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]
Call = Callable[[], object]
Peer = tuple[Call, Iterable[redis.Redis]]
"""What acquires and releases a lock, and the clients to close afterwards."""
KEY = uuid.uuid4().hex


def redlock_py(urls: list[str]) -> Peer:
    places = [urlsplit(url) for url in urls]
    nodes = [{"host": place.hostname, "port": place.port, "db": 0} for place in places]
    lock: Any = import_module("redlock").Redlock(nodes)

    def acquire_and_release() -> None:
        if had := lock.lock(f"{KEY}-redlock-py", 5000):
            lock.unlock(had)

    return acquire_and_release, lock.servers


def pottery(urls: list[str]) -> Peer:
    new: Any = import_module("pottery").Redlock
    masters = {redis.Redis.from_url(url) for url in urls}

    def acquire_and_release() -> None:
        lock = new(key=f"{KEY}-pottery", masters=masters, auto_release_time=5)
        lock.acquire()
        lock.release()

    return acquire_and_release, masters


def python_redis_lock(urls: list[str]) -> Peer:
    new: Any = import_module("redis_lock").Lock
    client = redis.Redis.from_url(urls[0])

    def acquire_and_release() -> None:
        lock = new(client, f"{KEY}-python-redis-lock", expire=5)
        lock.acquire()
        lock.release()

    return acquire_and_release, [client]


def redis_py(urls: list[str]) -> Peer:
    client = redis.Redis.from_url(urls[0])

    def acquire_and_release() -> None:
        lock = client.lock(f"{KEY}-redis-py", timeout=5)
        lock.acquire()
        lock.release()

    return acquire_and_release, [client]


PEERS = {
    "redlock-py, five nodes": redlock_py,
    "pottery, five nodes": pottery,
    "python-redis-lock, one node": python_redis_lock,
    "redis-py's Lock, one node": redis_py,
}


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_quorum_costs_less_than_with_any_peer(
    five: Servers, new_redlock: NewRedlock, seconds: float, report: Report, distance: str
) -> None:
    with reached(five.urls, distance) as urls, ExitStack() as stack:
        on_five, on_one = new_redlock(urls), new_redlock(urls[:1])
        calls: dict[str, Call] = {
            "celery-redlock, five nodes": lambda: on_five.release(on_five.acquire(KEY, ttl=5)),
            "celery-redlock, one node": lambda: on_one.release(on_one.acquire(KEY + "1", ttl=5)),
        }
        missing = []
        for name, new_peer in PEERS.items():
            try:
                calls[name], clients = new_peer(urls)
            except ImportError:
                missing.append(name.partition(",")[0])
                continue
            for client in clients:
                stack.callback(client.close)
        variants = interleaved(calls, seconds, in_a_row=20)
    note = f"not installed: {', '.join(missing)}" if missing else ""
    report.append((f"acquire + release, nodes {distance}", variants, note))
    ours, *others = variants
    assert all(ours.median < peer.median for peer in others if "five" in peer.name)
