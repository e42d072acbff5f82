"""What the lock costs: against the least that any client needs, with nodes that hang, for many."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import pytest

from celery_redlock.redlock.link import Link
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock

from .bare import BareLock
from .measure import Report, Variant, first_within, interleaved, ratio

pytestmark = pytest.mark.benchmark

LEASES = 10_000
BLOCK = 300


def test_five_nodes_cost_little_more_than_bare_sockets(
    five: Servers, new_redlock: NewRedlock, seconds: float, report: Report
) -> None:
    redlock = new_redlock(five.urls)
    bare = BareLock(server.port for server in five)

    def measure(seconds: float) -> list[Variant]:
        calls = {
            "bare sockets and hiredis": lambda: bare.acquire_and_release("key"),
            "celery-redlock": lambda: redlock.release(redlock.acquire("key", ttl=5)),
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
    redlock = new_redlock(five.urls, node_timeout=node_timeout)

    def acquire_and_release() -> None:
        redlock.release(redlock.acquire("key", ttl=5))

    def measure(seconds: float) -> list[Variant]:
        healthy, at_once, later = variants = [
            Variant("all five well"), Variant(f"two {fault}"), Variant(f"two {fault} for a while"),
        ]  # fmt: skip
        ends_at = time.perf_counter() + seconds
        while not healthy.walls or time.perf_counter() < ends_at:
            _block(healthy, acquire_and_release)
            _break(five, fault)
            # The first operation may meet what nobody has noticed yet.
            acquire_and_release()
            _block(at_once, acquire_and_release)
            time.sleep(2 * node_timeout)
            _block(later, acquire_and_release)
            _mend(five)
            redlock.check()
            _block(Variant("not counted"), acquire_and_release)
        return variants

    limits = {f"two {fault}": 1.5, f"two {fault} for a while": 1.5}
    variants, note = first_within(limits, measure, seconds)
    report.append((f"acquire + release, two of five nodes {fault}", variants, note))
    for name, limit in limits.items():
        assert ratio(variants, name) <= limit


def _block(variant: Variant, call: Callable[[], object]) -> None:
    for _ in range(BLOCK):
        variant.time(call)


def _break(five: Servers, fault: str) -> None:
    for server in five[:2]:
        server.pause() if fault == "stopped" else server.kill()


def _mend(five: Servers) -> None:
    for server in five:
        server.start()
        server.resume()


def test_ten_thousand_leases_are_renewed_in_few_round_trips(
    five: Servers, new_redlock: NewRedlock, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = new_redlock(five.urls)
    leases = [redlock.acquire(f"key-{number}", ttl=60) for number in range(LEASES)]
    one, all_of_them = Variant("one lease"), Variant(f"{LEASES:,} leases")
    for lease in leases[:BLOCK]:
        one.time(functools.partial(redlock.extend, lease))

    written = 0
    send = Link.send

    def counting(link: Link, payload: bytes, requests: int, now: float) -> None:
        nonlocal written
        written += 1
        send(link, payload, requests, now)

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
