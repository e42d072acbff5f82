"""Spans lie within the span of their task, and metrics have its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery.utils.dispatch import Signal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import celery_redlock.signals as ours
from celery_redlock import SingletonTask
from celery_redlock.observers import opentelemetry
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

OBSERVED = [
    *(value for value in vars(ours).values() if isinstance(value, Signal)),
    signals.task_retry,
]


class Observed:
    """What an observed app has exported."""

    def __init__(self, app: Celery) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._reader])
        opentelemetry.observe(app, tracer_provider=self.tracers, meter_provider=meters)

    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self._spans.get_finished_spans()}

    def metrics(self) -> dict[tuple[str, ...], Any]:
        """Return each value, of a histogram its count, by name and attributes."""
        data: Any = self._reader.get_metrics_data()
        return {
            (metric.name, *(str(value) for _, value in sorted(point.attributes.items()))):
                point.count if hasattr(point, "count") else point.value
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }  # fmt: skip


@pytest.fixture
def observed(app: Celery) -> Iterator[Observed]:
    before = {id(signal): list(signal.receivers or ()) for signal in OBSERVED}
    yield Observed(app)
    for signal in OBSERVED:
        signal.receivers = before[id(signal)]


def test_a_run_has_spans_for_its_request_and_its_hold(
    new_task: NewTask, observed: Observed
) -> None:
    with observed.tracers.get_tracer("test").start_as_current_span("run/t") as task:
        deliver(new_task())
    spans = observed.spans()
    for name in ("redlock acquire", "redlock hold"):
        assert spans[name].parent.span_id == task.get_span_context().span_id
        assert spans[name].context.trace_id == task.get_span_context().trace_id
        assert spans[name].attributes["redlock.key"] == "t"
        assert spans[name].start_time <= spans[name].end_time
    assert spans["run/t"].attributes["redlock.token"] == 1
    assert spans["redlock hold"].attributes["redlock.lost"] is False


def test_a_wait_is_a_span_of_its_length(
    new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(new_task(lock_on_conflict="wait", lock_wait=5))
    wait = observed.spans()["redlock wait"]
    assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(3)


def test_a_conflict_is_an_event_of_the_tasks_span(
    new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    node.held["t"] = HOLDER, 1e9
    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(new_task())
    [event] = observed.spans()["run/t"].events
    assert event.name == "redlock.conflict"
    assert event.attributes == {
        "redlock.key": "t", "redlock.outcome": "skip", "redlock.at": "execution",
        "redlock.holder": "holder@host",
    }  # fmt: skip


def test_a_missing_quorum_is_an_event_of_the_tasks_span(
    new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    node.is_up = False
    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(new_task(lock_on_unavailable="raise"))
    events = observed.spans()["run/t"].events
    assert "redlock.unavailable" in [event.name for event in events]


def test_a_lost_lease_is_an_event_and_marks_the_hold(app: Celery, observed: Observed) -> None:
    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        assert self.lease
        self.lease.backing.is_lost = True

    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(body)
    spans = observed.spans()
    assert spans["redlock hold"].attributes["redlock.lost"] is True
    assert [event.name for event in spans["run/t"].events] == ["redlock.lost"]


def test_metrics_have_the_task_and_the_outcome(
    app: Celery, new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    task = new_task()
    deliver(task)
    node.held["t"] = HOLDER, 1e9
    deliver(task, id="task-2")
    ours.nodes_checked.send(sender=app, votes=3, nodes=5, needed=3)
    assert observed.metrics() == {
        ("celery.redlock.acquired", "t"): 1,
        ("celery.redlock.released", "t"): 1,
        ("celery.redlock.conflicts", "skip", "t"): 1,
        ("celery.redlock.held", "t"): 0,
        ("celery.redlock.acquire.duration", "t"): 1,
        ("celery.redlock.hold.duration", "t"): 1,
        ("celery.redlock.nodes",): 5,
        ("celery.redlock.nodes.up",): 3,
        ("celery.redlock.quorum.margin",): 0,
    }
