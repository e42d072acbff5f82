"""Batches of tasks whose instructions are counted, each in a forked child, as in a pool process.

Callgrind runs `python -m tools.benchmarks.counted <settings as JSON>`, which prints as JSON, for
each variant, the pids of the children that published and executed few tasks and many.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

from celery import signals
from celery.app.trace import build_tracer, fast_trace_task, setup_worker_optimizations
from celery.worker.request import Request
from kombu import Connection

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.pools import pool_process
from celery_redlock.pools.keeper_client import KeeperClient
from celery_redlock.pools.lease_table import SharedLeaseTable
from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.transport import connection_set
from celery_redlock.redlock.transport.poller import new_poller
from tests.support.processes.forks import fork

from .names import OURS, PLAIN, UNTIL_EXECUTED
from .no_op_app import app, new_task

VARIANTS = (PLAIN, OURS, UNTIL_EXECUTED)
FEW, MANY = 20, 120
"""Sizes of two batches: the first costs what connecting does, and the second so many tasks more."""
_LAST = FEW + MANY
_BROKER = "memory://"
_HOST = "worker@host"
_REPLIES_S = 0.02
_LOOK_S = 10.0
"""The keeper's next look at the leases: after the batch, and before the first renewal is due."""


class _Patient:
    """Poller that finds all replies there: the load must not decide how often it polls."""

    def __init__(self) -> None:
        poller = new_poller()
        self.register, self.unregister, self._wait = poller.register, poller.unregister, poller.wait

    def wait(self, seconds: float) -> Sequence[int]:
        if seconds:
            time.sleep(_REPLIES_S)
        return self._wait(seconds)


def _publish(task: Any, batch: range) -> None:
    for number in batch:
        task.apply_async((_LAST + number,))


def _execute(calls: list[tuple[Any, ...]], batch: range) -> None:
    redlock, table = redlock_of(app), SharedLeaseTable()
    # Nobody reads the pipe: what the main process does is not counted.
    _, pipe = os.pipe()
    table.announce_look(redlock.clock.now() + _LOOK_S)
    pool_process.set_keeper_client(KeeperClient(pipe, table, 0, redlock, lambda: None))
    for number in batch:
        fast_trace_task(*calls[number])


def _calls(task: Any) -> list[tuple[Any, ...]]:
    """Publish the tasks of both batches; return what a worker has Celery's tracer called with."""
    for number in range(_LAST):
        task.apply_async((number,), queue=task.name)
    calls = []
    with Connection(_BROKER) as connection, connection.SimpleQueue(task.name) as queue:
        for _ in range(_LAST):
            message = queue.get(timeout=5)
            request = Request(message, app=app, task=task, hostname=_HOST)
            signals.task_received.send(sender=None, request=request)
            body = message.body, message.content_type, message.content_encoding
            calls.append((task.name, request.id, request.request_dict, *body))
            message.ack()
    return calls


def _pids(work: Callable[[range], None]) -> list[int]:
    """Do the work of each batch in a child, one after the other; return their pids."""
    pids = []
    # Other numbers in each: a number that was published before is a duplicate.
    for batch in (range(FEW), range(FEW, _LAST)):
        pid = fork(partial(work, batch))
        _, status = os.waitpid(pid, 0)
        if status:
            raise RuntimeError("a batch has failed")
        pids.append(pid)
    return pids


def main() -> None:
    """Publish and execute every batch."""
    app.conf.update(json.loads(sys.argv[1]), broker_url=_BROKER, task_ignore_result=True)
    mock.patch.object(connection_set, "new_poller", _Patient).start()
    # Connections that have not been used for long are examined: that must not depend on the load,
    # either. It stays below the keeper's next look.
    mock.patch.object(SystemClock, "now", staticmethod(count(1e6, 1e-6).__next__)).start()
    # As a worker has them: `app.task` returns proxies.
    tasks = {name: app.tasks[new_task(name).name] for name in VARIANTS}
    setup_worker_optimizations(app, _HOST)
    for task in tasks.values():
        task.__trace__ = build_tracer(task.name, task, app.loader, _HOST, app=app)
    calls = {name: _calls(task) for name, task in tasks.items()}
    gc.freeze()
    pids = {
        name: [*_pids(partial(_publish, task)), *_pids(partial(_execute, calls[name]))]
        for name, task in tasks.items()
    }
    sys.stdout.write(json.dumps(pids))
    sys.stdout.flush()
    # The threads of the lock need no goodbye.
    os._exit(0)


if __name__ == "__main__":
    main()
