"""How soon a lock is free once the process that ran its task was killed.

This file is the worker's app module as well.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import redis
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.processes.workers import Worker
from tools.benchmarks.names import KILLED
from tools.benchmarks.page import Page

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

_CONF, _NOTES = "REDLOCK_BENCH_CONF", "REDLOCK_BENCH_NOTES"
_TTL_S = 60
_POLL_S = 0.001

# ---- in the worker, and in the test's process, which publishes

app = Celery("deaths", set_as_current=False)
app.conf.update(json.loads(os.environ.get(_CONF, "{}")))


@singleton_task(app=app, shared=False, name="until killed")
def until_killed(key: str) -> None:
    (Path(os.environ[_NOTES]) / key).write_text(str(os.getpid()))
    time.sleep(_TTL_S)


# ---- in the test's process


def _killed(key: str, notes: Path, nodes: list[redis.Redis]) -> float:
    """Kill the process that runs a task; return when its lock is free, in seconds after that."""
    until_killed.delay(key)
    note = notes / key
    eventually(lambda: note.exists() and note.read_text())
    # There is no other.
    [name] = {key for node in nodes for key in node.scan_iter() if not key.endswith(b":floor")}
    os.kill(int(note.read_text()), signal.SIGKILL)
    killed_at = time.perf_counter()
    while sum(not node.exists(name) for node in nodes) < majority(len(nodes)):
        time.sleep(_POLL_S)
    freed_at = time.perf_counter()
    eventually(lambda: not any(node.exists(name) for node in nodes))
    return freed_at - killed_at


def test_a_killed_process(
    five: Servers, servers: Any, tmp_path: Path, seconds: float, page: Page
) -> None:
    [broker] = servers(1)
    conf = {
        "broker_url": broker.url,
        "task_ignore_result": True,
        "redlock_nodes": five.urls,
        "redlock_restart_guard": False,
        "redlock_ttl": _TTL_S,
    }
    app.conf.update(conf)
    env = {_CONF: json.dumps(conf), _NOTES: str(tmp_path)}
    worker = Worker("tests.benchmarks.test_deaths", tmp_path, concurrency=4, env=env)
    nodes = [redis.Redis.from_url(url) for url in five.urls]
    took: list[float] = []
    ends_at = time.perf_counter() + seconds
    with worker:
        while time.perf_counter() < ends_at or not took:
            took.append(_killed(f"victim-{len(took)}", tmp_path, nodes))
        redlock_of(app).close()
    app.close()
    for node in nodes:
        node.close()
    row = {
        "name": KILLED,
        "p50_ms": median(took) * 1e3,
        "p95_ms": sorted(took)[len(took) * 95 // 100] * 1e3,
        "longest_ms": max(took) * 1e3,
        "deaths": len(took),
    }
    page.add("deaths", "A pool process is killed in a task; then its lock is free", [row])
    assert all(second < _TTL_S for second in took), "freed by its keeper, not by its ttl"
