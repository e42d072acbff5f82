"""Requests and replies that a network cuts into pieces."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.events import Event, NodeDown
from celery_redlock.testing import Server
from tests.conftest import NewRedlock, ProxyFor, StartServers
from tests.support.judges.nodes import expire_on, take_on

TTL_S = 600.0
PATIENT = {"node_timeout": 60.0, "max_ttl": TTL_S}
"""The proxies share the interpreter with the test, and give way to it for each piece."""


@pytest.fixture
def three(servers: StartServers) -> list[Server]:
    return list(servers(3))


@pytest.mark.parametrize("piece", [1448, 5, 4])
def test_leases_with_long_keys_are_renewed_in_pieces(
    three: list[Server], new_redlock: NewRedlock, proxy_for: ProxyFor, piece: int
) -> None:
    seen: list[Event] = []
    proxies = [proxy_for(server) for server in three]
    redlock = new_redlock([proxy.url for proxy in proxies], **PATIENT, observers=[seen.append])
    leases = [redlock.acquire(f"{number}".ljust(400, "k"), TTL_S) for number in range(2)]
    for proxy in proxies:
        proxy.requests.piece, proxy.requests.pause = 1448, 0.0003
        proxy.replies.piece, proxy.replies.pause = piece, 0.0003
    for _ in range(20):
        assert redlock.extend_all(leases) == [None, None]
    for lease in leases:
        lease.ensure()
        redlock.release(lease)
    assert not [event for event in seen if isinstance(event, NodeDown)]


def test_a_lease_that_a_rival_has_is_not_renewed_in_pieces(
    three: list[Server], new_redlock: NewRedlock, proxy_for: ProxyFor
) -> None:
    proxies = [proxy_for(server) for server in three]
    redlock = new_redlock([proxy.url for proxy in proxies], **PATIENT)
    leases = [redlock.acquire(f"k{number}", TTL_S) for number in range(2)]
    for proxy in proxies:
        proxy.cut(4, 0.0003)
    assert redlock.extend_all(leases) == [None, None]
    expire_on(three[:2], "k1")
    take_on(three[:2], "k1", "rival")
    for _ in range(20):
        assert redlock.extend_all(leases[:1]) == [None]
        [kept, refused] = redlock.extend_all(leases)
        assert kept is None
        assert refused is not None
