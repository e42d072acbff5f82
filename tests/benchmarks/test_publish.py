"""What `delay()` costs: with a reservation on five nodes, with celery-singleton's lock on one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.runtime import redlock_of
from celery_redlock.testing import Servers

from .bare import BareLock
from .hop import DISTANCES, reached
from .measure import Cost, Report, cpu, first_within, interleaved, ratio, wall

# Its own code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

SINGLETON, OURS, PLAIN = "celery-singleton, one node", "celery-redlock, five nodes", "no lock"
BARE = "bare sockets, five nodes"
"""What the five nodes cost whoever asks them: the same commands, and then no lock's `delay()`."""


NEAR, FAR = DISTANCES


# Near, the publisher's CPU time: five servers at work on this machine are nothing that publishing
# costs elsewhere, and they would count as if it were.
@pytest.mark.parametrize(
    ("kind", "distance", "cost", "limit"),
    [
        ("a new message", NEAR, cpu, 1.6),
        ("a new message", FAR, wall, 1.5),
        ("a duplicate", NEAR, cpu, 1.6),
        ("a duplicate", FAR, wall, 1.0),
    ],
)
def test_publishing_costs_little_more_than_with_one_lock_server(
    five: Servers,
    seconds: float,
    report: Report,
    kind: str,
    distance: str,
    cost: Cost,
    limit: float,
) -> None:
    pytest.importorskip("celery_singleton", reason="pip install '.[bench]'")
    with reached(five.urls, distance) as urls:
        app = Celery(uuid.uuid4().hex, broker="memory://", set_as_current=False)
        tasks = _tasks(app, urls)
        calls = {name: _delay(task, kind) for name, task in tasks.items()}
        bare = BareLock(int(str(urlsplit(url).port)) for url in urls)
        if kind == "a new message":
            calls[BARE] = _delay_behind(bare, tasks[PLAIN])
        variants, note = first_within(
            {OURS: limit}, lambda seconds: interleaved(calls, seconds), seconds, cost
        )
        tasks[SINGLETON].singleton_backend.redis.close()
        redlock_of(app).close()
        bare.close()
        app.close()
    report.append((f"delay() of {kind}, lock servers {distance}", variants, note))
    assert ratio(variants, OURS, cost) <= limit


def _tasks(app: Celery, urls: list[str]) -> dict[str, Any]:
    app.conf.update(
        redlock_nodes=urls,
        redlock_restart_guard=False,
        redlock_node_timeout=2.0,
        singleton_backend_url=urls[0],
        singleton_lock_expiry=3600,  # as ours
    )
    # It keeps the first server that the process gave it.
    vars(import_module("celery_singleton.backends"))["_backend"] = None

    @app.task(base=import_module("celery_singleton").Singleton)
    def theirs(x: int) -> None: ...

    @singleton_task(app=app, lock_lifetime="until_executed")
    def ours(x: int) -> None: ...

    @app.task
    def plain(x: int) -> None: ...

    return {SINGLETON: theirs, OURS: ours, PLAIN: plain}


def _delay(task: Any, kind: str) -> Callable[[], object]:
    """Return what publishes the task, each time with other arguments if each is to be new."""
    numbers = count()
    if kind == "a duplicate":
        return lambda: task.delay(0)
    return lambda: task.delay(next(numbers))


def _delay_behind(bare: BareLock, task: Any) -> Callable[[], object]:
    numbers = count()

    def delay() -> None:
        number = next(numbers)
        bare.reserve(str(number))
        task.delay(number)

    return delay
