"""Tasks whose arguments are secrets: their keys are made of all of them."""

from __future__ import annotations

import os
from typing import Any

from prometheus_client import CollectorRegistry

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.observers import prometheus
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
prometheus.observe(
    app, port=int(os.environ.get("METRICS_PORT", "0")) or None, registry=CollectorRegistry()
)


def _make(policy: Any, **options: Any) -> Any:
    @singleton_task(app=app, name=policy, bind=True, lock_on_conflict=policy, lock_ttl=5, **options)
    def body(self: SingletonTask, secret: str, *, more: str, gate: str | None = None) -> None:
        inside.note("begin", lease=repr(self.lease))
        inside.wait_at(gate)

    return body


tasks = {
    policy: _make(policy) for policy in ("skip", "complete", "raise", "reschedule", "coalesce")
} | {"wait": _make("wait", lock_wait=0.5)}


@singleton_task(app=app, lock_lifetime="until_executed", lock_on_conflict="raise", lock_ttl=5)
def reserved(secret: str, *, more: str, gate: str | None = None) -> None:
    inside.note("begin")
    inside.wait_at(gate)


@singleton_task(app=app, lock_on_unavailable="raise", lock_ttl=5)
def strict(secret: str, *, more: str) -> None:
    inside.note("begin")


@singleton_task(app=app, lock_ttl=1)
def losing(secret: str, *, more: str) -> None:
    """Run until the lease is lost."""
    inside.note("begin")
    inside.wait_at("never")


@singleton_task(app=app)
def ticking(secret: str, *, more: str) -> None:
    inside.note("tick")
