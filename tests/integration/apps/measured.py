"""Tasks and ticks that are counted, and served on ports that the test has chosen."""

from __future__ import annotations

import os
import signal
from typing import Any

import redis
from prometheus_client import CollectorRegistry

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.observers import prometheus
from celery_redlock.redlock.protocol.scripts import lock_keys
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
# The tasks are not shared: a test's process loads this file several times.
registry = CollectorRegistry()  # a test's process loads this file several times
prometheus.observe(
    app,
    port=int(os.environ.get("METRICS_PORT", "0")) or None,
    beat_port=int(os.environ.get("BEAT_METRICS_PORT", "0")) or None,
    registry=registry,
)


def _make(policy: Any, **options: Any) -> Any:
    @singleton_task(  # type: ignore[untyped-decorator]
        app=app,
        shared=False,
        name=policy,
        lock_key="{key}",
        lock_ttl=5,
        lock_on_conflict=policy,
        **options,
    )
    def body(key: str, gate: str | None = None) -> None:
        inside.run(gate, key=key)

    return body


skip, complete, raise_ = (
    _make("skip"),
    _make("complete"),
    _make("raise", lock_on_unavailable="raise"),
)
reschedule, coalesce = _make("reschedule"), _make("coalesce")
wait = _make("wait", lock_wait=60.0)


@singleton_task(
    app=app, shared=False, name="reserved", lock_key="{key}", lock_lifetime="until_executed"
)
def reserved(key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)


@singleton_task(app=app, shared=False, name="robbed", lock_key="{key}", lock_ttl=3, bind=True)
def robbed(self: SingletonTask, key: str) -> None:
    """Lose the lease, and be interrupted."""
    assert self.lease is not None
    lock, floor = lock_keys("redlock", self.lease.key)
    for url in app.conf.redlock_nodes:
        with redis.Redis.from_url(url) as node:
            node.set(lock, "somebody else", px=10_000)
            node.set(floor, self.lease.token + 1)
    inside.wait_at("never")


@singleton_task(app=app, shared=False, name="killed", lock_key="{key}", lock_ttl=5, bind=True)
def killed(self: SingletonTask, key: str) -> None:
    inside.note("dying")
    os.kill(os.getpid(), signal.SIGKILL)


@singleton_task(app=app, shared=False, name="idle", lock_key=[])
def idle() -> None:
    pass


app.conf.beat_schedule = {"often": {"task": "idle", "schedule": 1.0}}
