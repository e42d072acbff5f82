"""What a process pays to have the lock at all: the time that its imports and its start take."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

from celery_redlock.testing import Servers
from tests.conftest import StartServers
from tests.support.processes.workers import Worker
from tools.benchmarks.names import OURS, PLAIN
from tools.benchmarks.no_op_app import CONF, COUNT, COUNTS, VARIANT
from tools.benchmarks.page import Page

pytestmark = pytest.mark.benchmark

IMPORTS = {
    "Python alone": "pass",
    "redis-py": "import redis",
    "the lock alone": "from celery_redlock import Redlock",
    "Celery": "from celery import Celery, Task",
    "Celery and celery-redlock": "from celery import Celery, Task; import celery_redlock.task",
    "the command line: celery --help": "import sys; sys.argv = ['celery', '--help']\n"
    "from contextlib import redirect_stdout\nfrom io import StringIO\n"
    "from celery.__main__ import main\nwith redirect_stdout(StringIO()): main()",
}
_LEAST = 3
_PEAK = "\nprint(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"


class UsersWorker(Worker):
    """A worker with all that Celery loads."""

    celery = "celery"
    is_fresh = True


def test_imports(seconds: float, page: Page) -> None:
    walls: dict[str, list[float]] = {name: [] for name in IMPORTS}
    order = list(IMPORTS)
    ends_at = time.perf_counter() + seconds / 2
    while time.perf_counter() < ends_at or len(walls[order[0]]) < _LEAST:
        random.shuffle(order)
        for name in order:
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", IMPORTS[name]], check=True, capture_output=True)
            walls[name].append(time.perf_counter() - began)
    rows = []
    for name, imports in IMPORTS.items():
        if "--help" in name or sys.platform != "linux":
            peak = None  # it exits, or the machine does not tell
        else:
            said = subprocess.run(
                [sys.executable, "-c", imports + _PEAK], check=True, capture_output=True, text=True
            )
            peak = int(said.stdout) / 1024
        rows.append({"name": name, "p50_ms": median(walls[name]) * 1000, "peak_mb": peak})
    page.add("start", "A process that only imports", rows)


def test_a_worker_until_it_is_ready(
    five: Servers, servers: StartServers, tmp_path: Path, seconds: float, page: Page
) -> None:
    [broker] = servers(1)
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(COUNT.size))
    conf = {"broker_url": broker.url, "redlock_nodes": five.urls, "redlock_restart_guard": False}
    walls: dict[str, list[float]] = {PLAIN: [], OURS: []}
    ends_at = time.perf_counter() + seconds / 2
    while time.perf_counter() < ends_at or not walls[OURS]:
        for name, mine in walls.items():
            worker = UsersWorker(
                "tools.benchmarks.no_op_app",
                tmp_path,
                name=f"worker-{len(mine)}-{len(name)}",
                concurrency=1,
                env={VARIANT: name, CONF: json.dumps(conf), COUNTS: str(counts)},
            )
            began = time.perf_counter()
            with worker:
                mine.append(time.perf_counter() - began)
    rows = [
        {
            "name": f"a worker until it is ready: {name}",
            "p50_ms": median(mine) * 1000,
            "peak_mb": None,
        }
        for name, mine in walls.items()
    ]
    page.add("start", "A process that only imports", rows)
