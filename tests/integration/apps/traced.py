"""A task with Celery's spans and ours, written to the test's notes."""

from __future__ import annotations

from typing import Any

from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from celery_redlock import singleton_task
from celery_redlock.observers import opentelemetry
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
opentelemetry.observe(app)


class Noting(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        inside.note(
            "span",
            name=span.name,
            trace=context.trace_id if context else None,
            span=context.span_id if context else None,
            parent=span.parent.span_id if span.parent else None,
            events=[event.name for event in span.events],
        )


@worker_process_init.connect(weak=False)
def trace_this_process(**_: Any) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Noting())
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


@singleton_task(app=app, lock_key="{key}")
def run(key: str, gate: str | None = None) -> None:
    inside.run(gate, key=key)
