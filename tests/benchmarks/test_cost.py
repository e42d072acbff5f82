"""What the lock costs: against the least that any client needs, with nodes that hang, for many."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import pytest

from celery_redlock import Redlock
from celery_redlock.redlock.link import Link
from celery_redlock.testing import Servers, start_servers
from tests.conftest import NewRedlock

from .bare import BareLock
from .measure import Report, Variant, first_within, interleaved, ratio

pytestmark = pytest.mark.benchmark

LEASES = 10_000
ONE_BY_ONE = 300


def test_five_nodes_cost_little_more_than_bare_sockets(
    five: Servers, new_redlock: NewRedlock, seconds: float, report: Report
) -> None:
    redlock = new_redlock(five.urls)
    bare = BareLock(server.port for server in five)

    def measure(seconds: float) -> list[Variant]:
        calls = {
            "bare sockets and hiredis": lambda: bare.acquire_and_release("key"),
            "celery-redlock": _acquire_and_release(redlock),
        }
        return interleaved(calls, seconds)

    limits = {"celery-redlock": 1.6}
    variants, note = first_within(limits, measure, seconds)
    bare.close()
    report.append(("acquire + release on five nodes", variants, note))
    assert ratio(variants, "celery-redlock") <= limits["celery-redlock"]


@pytest.mark.parametrize("fault", ["stopped", "killed"])
def test_two_of_five_nodes_that_are_gone_do_not_slow_it_down(
    five: Servers, new_redlock: NewRedlock, seconds: float, report: Report, fault: str
) -> None:
    node_timeout = 0.5
    unnoticed, noticed = f"two {fault}", f"two {fault} for a while"
    with start_servers(5) as others:
        calls = {
            "all five well": _acquire_and_release(new_redlock(five.urls)),
            # A silent node is asked for that long, and nothing else of a round is.
            unnoticed: _acquire_and_release(new_redlock(others.urls, node_timeout=60.0)),
            noticed: _acquire_and_release(new_redlock(others.urls, node_timeout=node_timeout)),
        }
        for call in calls.values():
            call()
        for server in others[:2]:
            server.pause() if fault == "stopped" else server.kill()
        for call in calls.values():
            call()
        time.sleep(2 * node_timeout)
        limits = {unnoticed: 1.5, noticed: 1.5}
        variants, note = first_within(limits, functools.partial(interleaved, calls), seconds)
    report.append((f"acquire + release, two of five nodes {fault}", variants, note))
    for name, limit in limits.items():
        assert ratio(variants, name) <= limit


def _acquire_and_release(redlock: Redlock) -> Callable[[], object]:
    return lambda: redlock.release(redlock.acquire("key", ttl=5))


def test_ten_thousand_leases_are_renewed_in_few_round_trips(
    five: Servers, new_redlock: NewRedlock, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = new_redlock(five.urls)
    leases = [redlock.acquire(f"key-{number}", ttl=60) for number in range(LEASES)]
    one, all_of_them = Variant("one lease"), Variant(f"{LEASES:,} leases")
    for lease in leases[:ONE_BY_ONE]:
        one.time(functools.partial(redlock.extend, lease))

    written = 0
    send = Link.send

    def counting(link: Link, payload: bytes, requests: int, now: float) -> bool:
        nonlocal written
        written += 1
        return send(link, payload, requests, now)

    monkeypatch.setattr(Link, "send", counting)
    refused: list[object] = []
    all_of_them.time(lambda: refused.extend(redlock.extend_all(leases)))
    writes = written / len(five)
    each_us = all_of_them.median / LEASES * 1e6
    note = f"{writes:.0f} writes to a node, {each_us:.0f} µs a lease"
    report.append(("renewal on five nodes", [one, all_of_them], note))
    assert refused == [None] * LEASES
    assert writes <= LEASES / 250
    # All of them have to be renewed once in a third of the default ttl.
    assert all_of_them.median < 10
