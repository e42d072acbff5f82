"""What stands on the nodes, seen by somebody who is not a client of the lock."""

from __future__ import annotations

from collections.abc import Iterable

from celery_redlock.redlock.protocol.scripts import lock_keys
from celery_redlock.testing import Server
from tests.support.asked import asked
from tests.support.eventually import eventually

PREFIX = "redlock"


def holder_on(server: Server, key: str) -> str | None:
    """Return the owner that has the lock on this node."""
    return _text(server, lock_keys(PREFIX, key)[0])


def floor_on(server: Server, key: str) -> int:
    """Return the lock's floor on this node; 0 if there is none."""
    return int(_text(server, lock_keys(PREFIX, key)[1]) or 0)


def ms_left_on(server: Server, key: str) -> int:
    """Return how long the lock stands on this node, in ms; -2 if it does not."""
    left = asked(server).pttl(lock_keys(PREFIX, key)[0])
    assert isinstance(left, int)
    return left


def holders_on(servers: Iterable[Server], key: str) -> list[str | None]:
    """Return who has the lock on each node."""
    return [holder_on(server, key) for server in servers]


def floors_on(servers: Iterable[Server], key: str) -> list[int]:
    """Return the lock's floor on each node."""
    return [floor_on(server, key) for server in servers]


def take_on(
    servers: Iterable[Server], key: str, owner: str, ttl: float = 600.0, token: int | None = None
) -> None:
    """Let `owner` have the lock on these nodes; with a token, as one that was granted later.

    It outlasts a test: without a token, a lease that had the lock before is healed after it.
    """
    lock, floor = lock_keys(PREFIX, key)
    for server in servers:
        with server.client() as client:
            client.set(lock, owner, px=round(ttl * 1000))
            if token is not None:
                client.set(floor, token, px=3_600_000)


def expire_on(servers: Iterable[Server], key: str) -> None:
    """Let the lock expire on these nodes; the floor stays."""
    for server in servers:
        with server.client() as client:
            client.delete(lock_keys(PREFIX, key)[0])


def set_ttl_on(servers: Iterable[Server], key: str, seconds: float) -> None:
    """Let the lock end in `seconds` on these nodes, sooner or later than it would."""
    for server in servers:
        with server.client() as client:
            client.pexpire(lock_keys(PREFIX, key)[0], round(seconds * 1000))


def assert_freed(servers: Iterable[Server], key: str) -> None:
    """Wait until nobody has the lock on any of them: given back, not expired after 30 s."""
    nodes = list(servers)
    eventually(lambda: holders_on(nodes, key) == [None] * len(nodes), "it is freed", within=25)


def _text(server: Server, name: str) -> str | None:
    value = asked(server).get(name)
    return value.decode() if isinstance(value, bytes) else None
