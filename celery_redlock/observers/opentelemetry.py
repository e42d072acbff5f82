"""Spans and metrics for OpenTelemetry, beside those of opentelemetry-instrumentation-celery.

from celery_redlock.observers import opentelemetry
opentelemetry.observe(app)
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from celery import Celery

from celery_redlock import signals

from .measurements import BUCKETS_S, COUNTERS, GAUGES, HISTOGRAMS, Recorder, connect_for_app

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise ImportError(
        "celery_redlock.observers.opentelemetry needs opentelemetry-api: "
        "pip install 'celery-redlock[opentelemetry]'"
    ) from error

_PREFIX = "celery.redlock."


def observe(
    app: Celery,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Trace and count what the app's singleton tasks do; call it once, where the app is made.

    Args:
        app: The app.
        tracer_provider: Provider of the tracer; None: the global one, set before or later.
        meter_provider: Provider of the meter; None: the global one, set before or later.
    """
    _Instruments(metrics.get_meter("celery_redlock", meter_provider=meter_provider)).connect(app)
    spans = _Spans(trace.get_tracer("celery_redlock", tracer_provider=tracer_provider))
    connect_for_app(
        app,
        (
            (signals.lock_acquired, spans.acquired),
            (signals.lock_released, spans.released),
            (signals.lock_wait_ended, spans.wait_ended),
            (signals.lock_conflict, spans.conflict),
            (signals.lock_unavailable, spans.unavailable),
        ),
    )


class _Spans:
    """Spans and events, within the span that is current: that of the task, if Celery's are made."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def acquired(self, _task: Any, lease: Any, **_: Any) -> None:
        attributes = {"redlock.key": lease.key, "redlock.token": lease.token}
        trace.get_current_span().set_attributes(attributes)
        self._span("redlock acquire", lease.clock.now() - lease.acquired_at, attributes)

    def released(self, _task: Any, lease: Any, **_: Any) -> None:
        attributes = {"redlock.key": lease.key, "redlock.lost": lease.lost}
        self._span("redlock hold", lease.clock.now() - lease.acquired_at, attributes)
        if lease.lost:
            # The signal `lock_lost` may be sent on another thread.
            trace.get_current_span().add_event("redlock.lost", {"redlock.key": lease.key})

    def wait_ended(self, _task: Any, waited: float, **_: Any) -> None:
        self._span("redlock wait", waited, {})

    def conflict(self, _task: Any, error: Any, outcome: str, at: str, **_: Any) -> None:
        attributes = {"redlock.key": error.key, "redlock.outcome": outcome, "redlock.at": at}
        if error.holder:
            attributes["redlock.holder"] = error.holder
        trace.get_current_span().add_event("redlock.conflict", attributes)

    def unavailable(self, _task: Any, error: Any, outcome: str, **_: Any) -> None:
        attributes = {"redlock.key": error.key, "redlock.outcome": outcome}
        trace.get_current_span().add_event("redlock.unavailable", attributes)

    def _span(self, name: str, seconds: float, attributes: dict[str, Any]) -> None:
        """Make a span that ends now."""
        now = time.time_ns()
        began = now - int(seconds * 1e9)
        self._tracer.start_span(name, start_time=began, attributes=attributes).end(now)


class _Instruments(Recorder):
    """Instruments of a meter."""

    def __init__(self, meter: metrics.Meter) -> None:
        self._counters = {
            name: meter.create_counter(_PREFIX + name, description=text)
            for name, (text, _) in COUNTERS.items()
        }
        self._histograms = {
            name: meter.create_histogram(
                f"{_PREFIX}{name}.duration",
                "s",
                text,
                explicit_bucket_boundaries_advisory=BUCKETS_S,
            )
            for name, text in HISTOGRAMS.items()
        }
        self._gauges = {
            name: meter.create_up_down_counter(_PREFIX + name, description=text)
            for name, text in GAUGES.items()
        }
        self._nodes: dict[str, int] = {}
        for name in ("nodes", "nodes.up", "quorum.margin"):
            callback = partial(self._observe_nodes, name)
            meter.create_observable_gauge(_PREFIX + name, [callback])

    def count(self, name: str, task: str, outcome: str = "") -> None:
        """Add one to a counter."""
        self._counters[name].add(1, {"task": task, "outcome": outcome} if outcome else _of(task))

    def observe(self, name: str, task: str, seconds: float) -> None:
        """Add a value to a histogram."""
        self._histograms[name].record(seconds, _of(task))

    def change(self, name: str, task: str, by: int) -> None:
        """Add to a gauge."""
        self._gauges[name].add(by, _of(task))

    def set_votes(self, votes: int, nodes: int, needed: int) -> None:
        """Record how many of the nodes vote, and how many must."""
        self._nodes = {"nodes": nodes, "nodes.up": votes, "quorum.margin": votes - needed}

    def _observe_nodes(self, name: str, _options: object) -> Iterable[metrics.Observation]:
        return [metrics.Observation(self._nodes[name])] if name in self._nodes else []


def _of(task: str) -> dict[str, str]:
    return {"task": task}
