"""One waiter, in a process of its own: `python -m tools.benchmarks.waiter <package> <url>...`.

For each line on its standard input it says that it waits, gets the lock, says when it had it, in
nanoseconds of the clock that all processes share, and releases it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from celery_redlock import Redlock

from .names import OURS, POTTERY, PYTHON_REDIS_LOCK, REDIS_PY
from .peers import TTL_S, client, package

Wait = Callable[[], AbstractContextManager[object]]
"""Waits for the lock, without limit, and holds it for the length of a block."""


def ours(urls: Sequence[str], key: str, stack: ExitStack) -> Wait:
    redlock = Redlock(urls, node_timeout=2.0, restart_guard=False)
    stack.callback(redlock.close)
    return lambda: redlock.lock(key, ttl=TTL_S, wait=math.inf)


def redis_py(urls: Sequence[str], key: str, stack: ExitStack) -> Wait:
    on_one = client(urls[0], stack)
    return lambda: on_one.lock(key, timeout=TTL_S)


def python_redis_lock(urls: Sequence[str], key: str, stack: ExitStack) -> Wait:
    new = package("redis_lock").Lock
    on_one = client(urls[0], stack)
    return lambda: new(on_one, key, expire=TTL_S)


def pottery(urls: Sequence[str], key: str, stack: ExitStack) -> Wait:
    new = package("pottery").Redlock
    masters = {client(url, stack) for url in urls}

    @contextmanager
    def hold() -> Any:
        lock = new(key=key, masters=masters, auto_release_time=TTL_S)
        while not lock.acquire():
            pass
        try:
            yield
        finally:
            lock.release()

    return hold


WAITING: dict[str, Callable[[Sequence[str], str, ExitStack], Wait]] = {
    OURS: ours,
    REDIS_PY: redis_py,
    PYTHON_REDIS_LOCK: python_redis_lock,
    POTTERY: pottery,
}


def main(name: str, key: str, *urls: str) -> None:
    """Wait for the lock whenever told to."""
    with ExitStack() as stack:
        wait = WAITING[name](urls, key, stack)
        for _ in sys.stdin:
            print("waits", flush=True)  # noqa: T201
            with wait():
                had_at = time.monotonic_ns()
            print(had_at, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
