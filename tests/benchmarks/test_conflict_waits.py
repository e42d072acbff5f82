"""How long a call waits that meets a run of its lock: its start after that run's end.

This file is the worker's app module as well.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.processes.workers import Worker
from tests.support.whole_lines import whole_lines
from tools.benchmarks.page import Page

pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

RUN_S = 1.5
KEYS = 8
"""Locks at a time, for each policy."""
POLICIES: tuple[Any, ...] = ("reschedule", "coalesce", "wait")
_CONF, _NOTES = "REDLOCK_BENCH_CONF", "REDLOCK_BENCH_NOTES"

# ---- in the worker, and in the test's process, which publishes

app = Celery("conflict-waits", set_as_current=False)
app.conf.update(json.loads(os.environ.get(_CONF, "{}")))


def body(key: str) -> None:
    began = time.monotonic()
    _note(key, "began", began)
    time.sleep(RUN_S)
    _note(key, "ended", time.monotonic())


def _note(key: str, event: str, at: float) -> None:
    # One write is one line, whoever else writes.
    with Path(os.environ[_NOTES]).open("ab", buffering=0) as notes:
        notes.write(f"{key} {event} {at}\n".encode())


tasks = {
    policy: singleton_task(app=app, shared=False, name=policy, lock_on_conflict=policy)(body)
    for policy in POLICIES
}

# ---- in the test's process


def _times(notes: Path, key: str, event: str) -> list[float]:
    lines = (line.split() for line in whole_lines(notes))
    return [float(at) for name, what, at in lines if (name, what) == (key, event)]


def _meet(policy: str, key: str, notes: Path, waits: list[float]) -> None:
    """Publish a call, and one more while it runs; note when that one started."""
    tasks[policy].delay(key)
    eventually(lambda: _times(notes, key, "began"))
    time.sleep(random.uniform(0.1, 0.8) * RUN_S)
    tasks[policy].delay(key)
    eventually(lambda: len(_times(notes, key, "began")) == 2)
    waits.append(_times(notes, key, "began")[1] - _times(notes, key, "ended")[0])


def test_a_call_that_meets_a_run(
    five: Servers, servers: Any, tmp_path: Path, seconds: float, page: Page
) -> None:
    [broker] = servers(1)
    notes = tmp_path / "notes"
    notes.touch()
    conf = {
        "broker_url": broker.url,
        "task_ignore_result": True,
        "redlock_nodes": five.urls,
        "redlock_restart_guard": False,
        "redlock_node_timeout": 2.0,
        "redlock_ttl": 30,
    }
    app.conf.update(conf)
    waits: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    worker = Worker(
        "tests.benchmarks.test_conflict_waits",
        tmp_path,
        pool="threads",
        concurrency=4 * KEYS * len(POLICIES),
        env={_CONF: json.dumps(conf), _NOTES: str(notes)},
    )
    ends_at = time.perf_counter() + 2 * seconds
    with worker:
        rounds = 0
        while time.perf_counter() < ends_at or not rounds:
            threads = [
                threading.Thread(target=_meet, args=(policy, f"{policy}-{rounds}-{n}", notes, mine))
                for policy, mine in waits.items()
                for n in range(KEYS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rounds += 1
        redlock_of(app).close()
    app.close()
    rows = [
        {"name": policy, "p50_s": median(mine), "longest_s": max(mine), "calls": len(mine)}
        for policy, mine in waits.items()
    ]
    title = f"A call that meets a run of {RUN_S:g} s starts after that run's end"
    page.add("waits", title, rows)
    assert all(len(mine) == rounds * KEYS for mine in waits.values())
