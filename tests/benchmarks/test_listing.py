"""What `celery redlock list` costs its process and the nodes, with many locks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_redlock.operate.listing import BATCH
from celery_redlock.redlock.lease import new_owner
from celery_redlock.testing import Servers
from tests.support.root import ROOT
from tools.benchmarks.page import Page, Row

pytestmark = pytest.mark.benchmark

MANY = 100_000
_PER_SECOND = 20_000
_SLOW_US = 10_000
_FILL = """
for number = 1, tonumber(ARGV[1]) do
  local name = 'redlock:{bank.sync:' .. number .. '}'
  redis.call('SET', name, ARGV[2] .. number .. '@worker', 'PX', 3600000)
  redis.call('SET', name .. ':floor', '1763800000000000', 'PX', 3600000)
end
"""


def listed(five: Servers, *words: str) -> tuple[int, float, float, float]:
    """Return how many lines `list` prints; its seconds, those on the CPU, and its MiB."""
    nodes = [word for url in five.urls for word in ("--node", url)]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.list_measured", *nodes,
         "--node-timeout", "30", "list", *words],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    wall, cpu, mib = map(float, ran.stderr.splitlines()[-1].split())
    return ran.stdout.count("\n"), wall, cpu, mib


@contextmanager
def watched(five: Servers) -> Iterator[Row]:
    """Yield a row, which has at the end what was asked of the nodes, and how long it took them."""
    row: Row = {}
    stop = threading.Event()
    turns: list[float] = []

    def ping() -> None:
        """Note how long another client of the first node waits for its turn."""
        with five[0].client() as client:
            while not stop.wait(0.02):
                began = time.perf_counter()
                client.ping()
                turns.append(time.perf_counter() - began)

    for node in five:
        with node.client() as client:
            client.config_set("slowlog-log-slower-than", _SLOW_US)
            client.slowlog_reset()
            client.config_resetstat()
    other = threading.Thread(target=ping)
    before = [computed(node) for node in five]
    other.start()
    try:
        yield row
    finally:
        stop.set()
        other.join()
    row["nodes_cpu_s"] = sum(map(computed, five)) - sum(before)
    row["ping_p99_ms"] = sorted(turns)[int(len(turns) * 0.99)] * 1e3
    row["slow_commands"] = sum(len(slow(node)) for node in five)
    row["longest_mean_us"] = max(mean_us(node) for node in five)


def computed(node: Any) -> float:
    """Return the CPU seconds of a node."""
    with node.client() as client:
        cpu = client.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def slow(node: Any) -> list[Any]:
    """Return the commands that took a node more than 10 ms, by its own log."""
    with node.client() as client:
        found: list[Any] = client.slowlog_get(1000)
    return found


def mean_us(node: Any) -> float:
    """Return the mean time of the dearest command of the listing; fail if one was unbounded."""
    with node.client() as client:
        stats = client.info("commandstats")
    assert "cmdstat_keys" not in stats
    return max(float(stats[f"cmdstat_{name}"]["usec_per_call"]) for name in ("scan", "getrange"))


def test_a_list_of_many_locks(five: Servers, seconds: float, page: Page) -> None:
    locks = min(MANY, int(seconds * _PER_SECOND))
    owner = new_owner("task-").partition("@")[0]
    for node in five:
        with node.client() as client:
            client.eval(_FILL, 0, locks, owner)
    rows = []
    for name, words, around in (("list", [], 3), ("list --json", ["--json"], 0)):
        with watched(five) as figures:
            lines, wall, cpu, mib = listed(five, *words)
        assert lines == locks + around
        assert mib < 50
        rows.append(
            {"name": name, "locks": locks, "wall_s": wall, "cpu_s": cpu, "peak_mib": mib}
            | figures
            | {"load": os.getloadavg()[0]}
        )
    note = f"five nodes; no command of theirs examines more than {BATCH} keys"
    page.add("listing", "A list of many locks", rows, note)
