"""What a lock that starts with publishing costs the publisher, against packages on one server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.testing import Servers
from tests.conftest import StartServers
from tools.benchmarks.bare import BareLock
from tools.benchmarks.hop import reached
from tools.benchmarks.names import BARE, ONCE, OURS, PLAIN, SINGLETON
from tools.benchmarks.page import Page, Row
from tools.benchmarks.peers import conf_of_peer, forget_servers, package
from tools.benchmarks.sampling import interleaved, timed

# Others' code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

KINDS = ("new", "duplicate")


@pytest.mark.parametrize("round_trip_ms", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_publishing(
    five: Servers, servers: StartServers, seconds: float, page: Page, kind: str, round_trip_ms: int
) -> None:
    [broker] = servers(1)
    with reached(five.urls, round_trip_ms) as urls:
        app = Celery(uuid.uuid4().hex, broker=broker.url, set_as_current=False)
        tasks, missing = _tasks(app, urls)
        calls = {name: _delay(task, kind) for name, task in tasks.items()}
        bare = BareLock(int(url.rpartition(":")[2]) for url in urls)
        if kind == "new":
            calls[BARE] = _delay_behind(bare, tasks[PLAIN])
        variants = interleaved({name: timed(call) for name, call in calls.items()}, seconds / 2)
        forget_servers()
        redlock_of(app).close()
        bare.close()
        app.close()
    which: Row = {"kind": kind, "rtt_ms": round_trip_ms}
    rows = [variant.row(**which) for variant in variants]
    rows += [row | which for row in missing]
    page.add("publish", "delay(): a new message, and a duplicate", rows)


def _tasks(app: Celery, urls: list[str]) -> tuple[dict[str, Any], list[Row]]:
    app.conf.update(redlock_nodes=urls, redlock_restart_guard=False, redlock_node_timeout=2.0)
    forget_servers()

    def body(x: int) -> None: ...

    tasks: dict[str, Any] = {
        PLAIN: app.task(name="plain")(body),
        OURS: singleton_task(app=app, name="ours", lock_lifetime="until_executed")(body),
    }
    missing: list[Row] = []
    options: Any
    for name, module, base, options in (
        (SINGLETON, "celery_singleton", "Singleton", {}),
        (ONCE, "celery_once", "QueueOnce", {"once": {"graceful": True}}),
    ):
        try:
            base_class = getattr(package(module), base)
        except ImportError as error:
            missing.append({"name": name, "missing": str(error)})
        else:
            app.conf.update(conf_of_peer(name, urls[0]))
            new_task: Any = app.task(name=module, base=base_class, **options)
            tasks[name] = new_task(body)
    return tasks, missing


def _delay(task: Any, kind: str) -> Callable[[], object]:
    """Return what publishes the task, each time with other arguments if each is to be new."""
    numbers = count()
    if kind == "duplicate":
        return lambda: task.delay(0)
    return lambda: task.delay(next(numbers))


def _delay_behind(bare: BareLock, task: Any) -> Callable[[], object]:
    """Return what publishes behind the same commands over bare sockets."""
    numbers = count()

    def delay() -> None:
        number = next(numbers)
        bare.reserve(str(number))
        task.delay(number)

    return delay
