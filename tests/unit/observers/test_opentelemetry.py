"""Spans lie within the span of their task, and metrics have its name."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import celery_redlock.signals as ours
from celery_redlock import SingletonTask
from celery_redlock.observers import opentelemetry
from celery_redlock.observers.measurements import BUCKETS_S, COUNTERS, GAUGES, HISTOGRAMS
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

DESCRIBED = {
    **{name: ("", text) for name, (text, _) in COUNTERS.items()},
    **{f"{name}.duration": ("s", text) for name, text in HISTOGRAMS.items()},
    **{name: ("", text) for name, text in GAUGES.items()},
    **dict.fromkeys(("nodes", "nodes.up", "quorum.margin"), ("", "")),
}
"""Unit and description of each metric."""


class Observed:
    """What an observed app has exported."""

    def __init__(self, app: Celery) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        meters = MeterProvider([self._reader])
        opentelemetry.observe(app, tracer_provider=self.tracers, meter_provider=meters)

    def spans(self) -> dict[str, Any]:
        spans: dict[str, Any] = {one.name: one for one in self._spans.get_finished_spans()}
        for name, span in spans.items():
            is_ours = span.instrumentation_scope.name == "celery_redlock"
            assert is_ours is name.startswith("redlock ")
        return spans

    def metrics(self) -> dict[tuple[str, ...], Any]:
        """Return each value, of a histogram its count, by name and attributes."""
        data: Any = self._reader.get_metrics_data()
        values = {}
        for scope in data.resource_metrics[0].scope_metrics if data else ():
            assert scope.scope.name == "celery_redlock"
            for metric in scope.metrics:
                described = DESCRIBED[metric.name.removeprefix("celery.redlock.")]
                assert (metric.unit, metric.description) == described
                for point in metric.data.data_points:
                    attributes = [f"{name}={value}" for name, value in point.attributes.items()]
                    is_histogram = hasattr(point, "count")
                    assert not is_histogram or point.explicit_bounds == BUCKETS_S
                    key = metric.name, *sorted(attributes)
                    values[key] = point.count if is_histogram else point.value
        return values


@pytest.fixture
def observed(app: Celery) -> Observed:
    return Observed(app)


def test_a_run_has_spans_for_its_request_and_its_hold(
    app: Celery, node: OneNode, observed: Observed
) -> None:
    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        node.clock.move(3.0)

    with observed.tracers.get_tracer("test").start_as_current_span("run/t") as task:
        deliver(body)
    spans = observed.spans()
    for name, nanoseconds in (("redlock acquire", 0), ("redlock hold", 3_000_000_000)):
        assert spans[name].parent.span_id == task.get_span_context().span_id
        assert spans[name].context.trace_id == task.get_span_context().trace_id
        assert spans[name].attributes["redlock.key"] == "t"
        assert spans[name].end_time - spans[name].start_time == nanoseconds
    assert spans["run/t"].attributes["redlock.token"] == 1
    assert spans["redlock hold"].attributes["redlock.lost"] is False
    assert spans["run/t"].events == ()


def test_a_wait_is_a_span_of_its_length(
    new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(new_task(lock_on_conflict="wait", lock_wait=5))
    wait = observed.spans()["redlock wait"]
    assert (wait.end_time - wait.start_time) / 1e9 == pytest.approx(3)


@pytest.mark.parametrize(
    ("owner", "holder"),
    [(HOLDER, {"redlock.holder": "holder@host"}), ("0" * 32, {})],
)
def test_a_conflict_is_an_event_of_the_tasks_span(
    new_task: NewTask, node: OneNode, observed: Observed, owner: str, holder: dict[str, str]
) -> None:
    node.held["t"] = owner, 1e9
    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(new_task())
    [event] = observed.spans()["run/t"].events
    assert event.name == "redlock.conflict"
    assert event.attributes == {
        "redlock.key": "t", "redlock.outcome": "skip", "redlock.at": "execution", **holder
    }  # fmt: skip


def test_a_missing_quorum_is_an_event_of_the_tasks_span(
    new_task: NewTask, node: OneNode, observed: Observed
) -> None:
    node.is_up = False
    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(new_task(lock_on_unavailable="raise"))
    events = {event.name: event.attributes for event in observed.spans()["run/t"].events}
    assert events["redlock.unavailable"] == {"redlock.key": "t", "redlock.outcome": "raise"}


def test_a_lost_lease_is_an_event_and_marks_the_hold(app: Celery, observed: Observed) -> None:
    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        assert self.lease
        self.lease.backing.is_lost = True

    with observed.tracers.get_tracer("test").start_as_current_span("run/t"):
        deliver(body)
    spans = observed.spans()
    assert spans["redlock hold"].attributes["redlock.lost"] is True
    [event] = spans["run/t"].events
    assert (event.name, event.attributes) == ("redlock.lost", {"redlock.key": "t"})


def test_metrics_have_the_task_and_the_outcome(
    app: Celery, new_task: NewTask, node: OneNode, observed: Observed,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    assert observed.metrics() == {}
    assert caplog.records == [], "no callback has failed"
    task = new_task()
    deliver(task)
    node.held["t"] = HOLDER, 1e9
    deliver(task, id="task-2")
    ours.nodes_checked.send(sender=app, votes=3, nodes=5, needed=3)
    assert observed.metrics() == {
        ("celery.redlock.acquired", "task=t"): 1,
        ("celery.redlock.released", "task=t"): 1,
        ("celery.redlock.conflicts", "outcome=skip", "task=t"): 1,
        ("celery.redlock.held", "task=t"): 0,
        ("celery.redlock.acquire.duration", "task=t"): 1,
        ("celery.redlock.hold.duration", "task=t"): 1,
        ("celery.redlock.nodes",): 5,
        ("celery.redlock.nodes.up",): 3,
        ("celery.redlock.quorum.margin",): 0,
    }
