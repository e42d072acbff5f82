"""The app of the workers that execute a task which does nothing, one worker for each variant.

It imports nothing but the package of its variant, as a user's app does.
"""

from __future__ import annotations

import json
import mmap
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from struct import Struct
from typing import Any

from billiard import current_process
from celery import Celery
from celery.signals import worker_process_init

from .names import BARE, ONCE, PLAIN, SINGLETON, UNTIL_EXECUTED

VARIANT, CONF = "REDLOCK_BENCH_VARIANT", "REDLOCK_BENCH_CONF"
COUNTS = "REDLOCK_BENCH_COUNTS"
"""Variables that tell a worker what it executes, and where it counts that."""
COUNT = Struct("=Q")

app = Celery("no-op", set_as_current=False)
executed = memoryview(bytearray(COUNT.size)).cast("Q")
"""How many tasks this process has executed."""


def body(number: int) -> None:  # the key of its lock
    executed[0] += 1


@cache
def bare_lock() -> Any:
    """Return the lock over bare sockets of this process."""
    from .bare import BareLock  # noqa: PLC0415  # the other variants do without

    return BareLock([int(url.rpartition(":")[2]) for url in app.conf.redlock_nodes])


def body_under_bare_lock(number: int) -> None:
    """Do under a lock over bare sockets what `body` does: the least that a lock costs a worker."""
    lock = bare_lock()
    held = lock.acquire(str(number))
    executed[0] += 1
    lock.release(str(number), *held)


def new_task(name: str) -> Any:
    """Make the task of a variant.

    Raises:
        ImportError: Its package is not installed.
    """
    options: dict[str, Any] = {}
    if name == SINGLETON:
        options["base"] = import_module("celery_singleton").Singleton
    elif name == ONCE:
        options["base"] = import_module("celery_once").QueueOnce
    elif name == BARE:
        return app.task(name=name)(body_under_bare_lock)
    elif name != PLAIN:
        options["base"] = import_module("celery_redlock").SingletonTask
        options["lock_lifetime"] = "until_executed" if name == UNTIL_EXECUTED else "while_executing"
    task: Any = app.task
    return task(name=name, **options)(body)


@worker_process_init.connect
def _share_count(**_: object) -> None:
    global executed  # noqa: PLW0603  # a pool process has one
    with Path(os.environ[COUNTS]).open("r+b") as file:
        process: Any = current_process()
        executed = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")[process.index :]


if VARIANT in os.environ:
    app.conf.update(json.loads(os.environ[CONF]))
    new_task(os.environ[VARIANT])
