"""What docs/how-to/async.md says of calls in a coroutine, without a quorum."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import QuorumUnavailable, signals, singleton_task
from celery_redlock.testing import Servers
from tests.conftest import StartServers
from tests.support.eventually import eventually

NODE_TIMEOUT = 0.05
PATIENT = 20.0
NewTask = Callable[..., Any]


@pytest.fixture
def three(servers: StartServers) -> Servers:
    return servers(3)


@pytest.fixture
def new_task(three: Servers) -> Iterator[NewTask]:
    """Return a task that has reserved a key, on nodes of which two are frozen since."""
    apps: list[Celery] = []

    def new(node_timeout: float, **options: Any) -> Any:
        app = Celery("bank", broker="memory://", set_as_current=False)
        apps.append(app)
        app.conf.update(redlock_nodes=three.urls, redlock_restart_guard=False)
        app.conf.redlock_node_timeout = node_timeout

        def sync(key: object) -> None: ...

        make: Any = singleton_task(
            app=app, shared=False, name="bank.sync", lock_key="{key}", **options
        )
        task = make(sync)
        task.delay("first")
        three[0].pause()
        three[1].pause()
        return task

    yield new
    for app in apps:
        app.close()


def refused(task: Any, key: object) -> tuple[float, str]:
    """Return how long a call takes that finds no quorum, seconds, and its error."""
    began = time.monotonic()
    with pytest.raises(QuorumUnavailable) as raised:
        task.delay(key)
    return time.monotonic() - began, str(raised.value)


RAISES = {"lock_lifetime": "until_executed", "lock_on_unavailable": "raise"}


def test_the_loop_goes_on_while_a_call_waits_in_a_thread(three: Servers, new_task: NewTask) -> None:
    task = new_task(PATIENT, lock_lifetime="until_executed")

    async def publish() -> None:
        publishing = asyncio.create_task(asyncio.to_thread(task.delay, 42))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert not publishing.done()
        three[0].resume()
        assert (await publishing).id

    asyncio.run(publish())


def test_the_default_lifetime_asks_no_node(new_task: NewTask) -> None:
    task = new_task(PATIENT)
    unavailable: list[dict[str, Any]] = []

    def note(**about: Any) -> None:
        unavailable.append(about)

    signals.lock_unavailable.connect(note, sender=task)
    assert task.delay(42).id
    assert unavailable == []


def test_after_a_call_that_waited_for_a_quorum_the_next_fail_fast(
    three: Servers, new_task: NewTask
) -> None:
    task = new_task(NODE_TIMEOUT, **RAISES)
    took, error = refused(task, 1)
    assert took >= NODE_TIMEOUT
    assert "not asked since" not in error
    # On a machine that is busy for long enough between two calls, the nodes are asked again.
    eventually(lambda: "not asked since" in refused(task, 2)[1])
    three[0].resume()
    eventually(lambda: is_published(task, 3))


def is_published(task: Any, key: object) -> bool:
    try:
        return bool(task.delay(key).id)
    except QuorumUnavailable:
        return False


@pytest.mark.long
def test_a_call_waits_longer_once_the_connections_are_given_up(new_task: NewTask) -> None:
    task = new_task(NODE_TIMEOUT, **RAISES)
    eventually(lambda: refused(task, 42)[0] >= 20 * NODE_TIMEOUT)
