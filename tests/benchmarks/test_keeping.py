"""Many leases kept by one keeper: what it costs, and how late the latest renewal is."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tools.benchmarks.page import Page

pytestmark = pytest.mark.benchmark

LEASES = 10_000
_LOOK_S = 0.05


def test_one_keeper_for_many_leases(
    five: Servers, new_redlock: NewRedlock, seconds: float, page: Page
) -> None:
    leases = min(LEASES, int(seconds * 1000))
    # Two renewals of each, while we look; and all are renewed once while they are taken.
    ttl = max(12.0, seconds * 3 / 4)
    lasts = ttl * 2 / 3
    redlock = new_redlock(five.urls)
    with ExitStack() as stack:
        held = [
            stack.enter_context(redlock.lock(f"key-{number}", ttl=ttl)) for number in range(leases)
        ]
        worst = ttl
        computed, cpu = time.process_time(), 0.0
        ends_at = time.perf_counter() + lasts
        while time.perf_counter() < ends_at:
            time.sleep(_LOOK_S)
            looked = time.thread_time()
            worst = min(worst, *(lease.remaining() for lease in held))
            cpu -= time.thread_time() - looked
        cpu += time.process_time() - computed
        lost = sum(lease.lost for lease in held)
        stack.pop_all()  # the servers are emptied anyway
    redlock.close()
    row = {
        "name": "one keeper",
        "leases": leases,
        "ttl_s": ttl,
        "cpu_share": cpu / lasts,
        "cpu_us_per_renewal": cpu / (leases * lasts / (ttl / 3)) * 1e6,
        "least_left_s": worst,
        # A lease is to be renewed when two thirds are left.
        "latest_s": ttl * 2 / 3 - worst,
        "lost": lost,
    }
    page.add("keeper", "Leases renewed by one keeper, five nodes", [row])
    assert not lost
