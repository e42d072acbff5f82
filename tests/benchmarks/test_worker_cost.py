"""What a lock costs a worker: for a task that does nothing, in the prefork pool, against peers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil
import pytest
import redis

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.testing import Server, Servers
from tests.support.eventually import eventually
from tests.support.processes.workers import Worker
from tests.support.requirements import linux_only
from tools.benchmarks.names import BARE, ONCE, OURS, PLAIN, SINGLETON, UNTIL_EXECUTED
from tools.benchmarks.no_op_app import CONF, COUNT, COUNTS, VARIANT, app, new_task
from tools.benchmarks.page import Page, Row
from tools.benchmarks.peers import conf_of_peer, forget_servers

# Others' code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

VARIANTS = (PLAIN, BARE, OURS, UNTIL_EXECUTED, SINGLETON, ONCE)
PROCESSES = 2
BATCH = 400
"""Tasks that a worker executes in its turn."""
_REST_S = 0.1
"""Time for which a worker rests before its CPU time is read."""
_NUMBERS = count()


class Busy:
    """A worker of one variant's tasks.

    Args:
        name: Name of the variant.
        broker: Its database 1 gets the messages, its database 0 is the worker's.
        folder: For its log and its counts.
        conf: Configuration of the app.
    """

    def __init__(self, name: str, broker: Server, folder: Path, conf: dict[str, Any]) -> None:
        self._name = name
        self._task = new_task(name)
        self._queue = name.replace(",", "").replace(" ", "-")
        self._redis = redis.Redis.from_url(f"{broker.url}/1")
        self._counts = folder / f"{self._queue}.counts"
        self._counts.write_bytes(bytes(PROCESSES * COUNT.size))
        self._walls: list[float] = []
        self._cpus: list[float] = []
        self._worker = Worker(
            "tools.benchmarks.no_op_app",
            folder,
            name=self._queue,
            concurrency=PROCESSES,
            # A line for each task would cost more than its lock.
            args=("--queues", self._queue, "--loglevel", "WARNING"),
            env={VARIANT: name, CONF: json.dumps(conf), COUNTS: str(self._counts)},
        )
        self._worker.is_fresh = True  # a fork shares memory with whom it is a fork of
        self._worker.start()

    def stop(self) -> None:
        """Stop the worker."""
        self._worker.stop()
        self._redis.close()

    def execute(self, batch: int = BATCH) -> None:
        """Publish a batch, let the worker execute it, and note what each task took."""
        for _ in range(batch):
            self._task.apply_async((next(_NUMBERS),), queue=self._queue)
        before, computed = self._executed(), self._computed()
        began = time.perf_counter()
        self._redis.move(self._queue, 0)
        eventually(lambda: self._executed() >= before + batch)
        self._walls.append((time.perf_counter() - began) / batch)
        time.sleep(_REST_S)
        self._cpus.append((self._computed() - computed) / batch)

    def warm_up(self) -> None:
        """Execute a few tasks, which the figures leave out."""
        self.execute(BATCH // 4)
        self._walls.clear()
        self._cpus.clear()

    def row(self) -> Row:
        """Return the medians of its batches, and the memory that its processes take."""
        processes = [self._worker.pid, *self._worker.children()]
        main, *children = (psutil.Process(pid).memory_full_info().pss for pid in processes)
        return {
            "name": self._name,
            "cpu_us": median(self._cpus) * 1e6,
            "tasks_per_s": 1 / median(self._walls),
            "batches": len(self._walls),
            "main_mb": main / 2**20,
            "child_mb": mean(children) / 2**20,
        }

    def _executed(self) -> int:
        return sum(count for (count,) in COUNT.iter_unpack(self._counts.read_bytes()))

    def _computed(self) -> float:
        """Return the CPU time of all threads of all processes of the worker, in seconds."""
        nanoseconds = 0
        for pid in (self._worker.pid, *self._worker.children()):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9


@contextmanager
def busy_workers(
    broker: Server, nodes: Servers, folder: Path
) -> Iterator[tuple[list[Busy], list[Row]]]:
    """Start a worker for each variant; return them, and rows for those that are not installed."""
    conf = {
        "broker_url": f"{broker.url}/0",
        "task_ignore_result": True,
        "redlock_nodes": nodes.urls,
        "redlock_restart_guard": False,
        "redlock_node_timeout": 2.0,
    }
    app.conf.update(conf, broker_url=f"{broker.url}/1")
    forget_servers()
    workers: list[Busy] = []
    missing: list[Row] = []
    with ExitStack() as stack:
        stack.callback(app.close)
        stack.callback(lambda: redlock_of(app).close())
        stack.callback(forget_servers)
        for name in VARIANTS:
            try:
                theirs = conf_of_peer(name, nodes.urls[0])
                one = Busy(name, broker, folder, conf | theirs)
            except ImportError as error:
                missing.append({"name": name, "missing": str(error)})
            else:
                app.conf.update(theirs)
                workers.append(one)
                stack.callback(one.stop)
        yield workers, missing


@linux_only("tells these times", is_there=Path("/proc/self/schedstat").exists())
def test_a_task_that_does_nothing(
    five: Servers, servers: Any, tmp_path: Path, seconds: float, page: Page
) -> None:
    [broker] = servers(1)
    with busy_workers(broker, five, tmp_path) as (workers, missing):
        for one in workers:
            one.warm_up()
        ends_at = time.perf_counter() + 2 * seconds
        is_first = True
        while is_first or time.perf_counter() < ends_at:
            is_first = False
            for one in random.sample(workers, len(workers)):
                one.execute()
        rows = [one.row() for one in workers]
    page.add("worker", f"A task that does nothing, prefork -c {PROCESSES}", rows + missing)
