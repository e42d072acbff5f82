"""Each library, made active in a process as its documentation says.

The environment names which one: the app's module calls `activate` before it makes the app.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from celery import Celery, current_task
from celery.signals import worker_process_init

from celery_redlock import singleton_task

LIBRARY_VARIABLE = "REDLOCK_TEST_LIBRARY"
"""Names the class below that is active in a process."""

Note = Callable[..., None]


class Plain:
    """Nothing to make active in a process that runs tasks.

    Attributes:
        app_class: Class of the app.
        base: Base class of the tasks, if any.
    """

    app_class: type[Celery] = Celery
    base: Any = None

    def watch(self, note: Note) -> None:
        """Note what the library reports, if that matters."""

    def add_tasks(self, app: Celery) -> None:
        """Add what else the worker has."""

    def add_refused_task(self, app: Celery) -> None:
        """Add a singleton task that can't be locked with this library."""

    def seen(self) -> object:
        """Return what proves that the library is active in the task that calls this."""
        return True

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Publish inside a trace of the library's."""
        yield


class DDTrace(Plain):
    """`ddtrace-run` patches Celery."""

    def seen(self) -> object:
        """Return the ids of the span, and of the producer's in the nested headers."""
        from ddtrace import tracer  # noqa: PLC0415

        span = tracer.current_span()
        return bool(span) and "x-datadog-trace-id" in (current_task.request.headers or {})


class Sentry(Plain):
    """`sentry_sdk.init` with Celery's integration; what it would send is noted."""

    def watch(self, note: Note) -> None:
        """Start the SDK with a transport that notes each check-in of Crons."""
        import sentry_sdk  # noqa: PLC0415
        from sentry_sdk.integrations.celery import CeleryIntegration  # noqa: PLC0415
        from sentry_sdk.transport import Transport  # noqa: PLC0415

        class Noting(Transport):  # type: ignore[misc, unused-ignore]
            def capture_envelope(self, envelope: Any) -> None:
                for item in envelope.items:
                    if item.headers.get("type") == "check_in":
                        told = item.payload.json
                        note(
                            "check-in", slug=told["monitor_slug"], check_in=told["check_in_id"],
                            status=told["status"],
                        )  # fmt: skip

            def capture_event(self, event: Any) -> None: ...

        sentry_sdk.init(
            dsn="http://key@127.0.0.1:9/1",
            integrations=[CeleryIntegration(monitor_beat_tasks=True)],
            traces_sample_rate=1.0,
            transport=Noting,
        )

    def seen(self) -> object:
        """Return the id of the trace that the producer began."""
        import sentry_sdk  # noqa: PLC0415

        nested = current_task.request.headers or {}
        return sentry_sdk.get_current_span() is not None and "sentry-trace" in nested

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Publish inside a transaction."""
        import sentry_sdk  # noqa: PLC0415

        with sentry_sdk.start_transaction(name="producer"):
            yield


class OpenTelemetry(Plain):
    """`CeleryInstrumentor` in each process of the pool, and in the producer."""

    def watch(self, note: Note) -> None:
        """Instrument Celery."""
        from opentelemetry import trace  # noqa: PLC0415
        from opentelemetry.instrumentation.celery import CeleryInstrumentor  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

        def instrument(**_: object) -> None:
            trace.set_tracer_provider(TracerProvider())
            CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]

        if "worker" in sys.argv:
            worker_process_init.connect(instrument, weak=False)
        else:
            instrument()

    def seen(self) -> object:
        """Return whether the task is in a span whose trace the producer began."""
        from opentelemetry import trace  # noqa: PLC0415

        span: Any = trace.get_current_span()
        return span.is_recording() and span.parent is not None and span.parent.is_remote


class NewRelic(Plain):
    """`newrelic-admin run-program` instruments Celery."""

    def seen(self) -> object:
        """Return whether the task is in a transaction of the agent's."""
        import newrelic.agent  # noqa: PLC0415

        return newrelic.agent.current_transaction() is not None

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Publish inside a transaction."""
        import newrelic.agent  # noqa: PLC0415

        with newrelic.agent.BackgroundTask(newrelic.agent.register_application(), "producer"):
            yield


class ElasticAPM(Plain):
    """The client's instrumentation of Celery, as in its documentation."""

    client: Any

    def watch(self, note: Note) -> None:
        """Register with Celery's signals."""
        from elasticapm import Client  # noqa: PLC0415
        from elasticapm.contrib.celery import (  # noqa: PLC0415
            register_exception_tracking,
            register_instrumentation,
        )

        self.client = Client()
        register_exception_tracking(self.client)
        register_instrumentation(self.client)

    def seen(self) -> object:
        """Return whether the task is in a transaction whose trace the producer began."""
        import elasticapm  # noqa: PLC0415

        trace: Any = elasticapm.get_trace_parent_header()
        sent: Any = current_task.request.get("elasticapm") or {}
        return trace and trace.split("-")[1] in sent.get("trace_parent_string", "")

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Publish inside a transaction."""
        self.client.begin_transaction("script")
        try:
            yield
        finally:
            self.client.end_transaction("producer")


class Batches(Plain):
    """A plain task that collects messages, in the same worker."""

    def add_tasks(self, app: Celery) -> None:
        """Add a plain task that collects messages."""
        from celery_batches import Batches as Collected  # noqa: PLC0415

        @app.task(base=Collected, name="collected")
        def collected(requests: object) -> None: ...

    def add_refused_task(self, app: Celery) -> None:
        """Add a singleton that collects messages."""
        from celery_batches import Batches as Collected  # noqa: PLC0415

        @singleton_task(app=app, base=Collected, name="refused")
        def refused(requests: object) -> None: ...

    def seen(self) -> object:
        """Return whether the worker has a task of batches."""
        return "collected" in current_task.app.tasks


class AioPool(Plain):
    """The pool that awaits; its tracer takes the place of Celery's."""

    def add_refused_task(self, app: Celery) -> None:
        """Add a singleton whose body is awaited."""

        @singleton_task(app=app, name="refused")
        async def refused() -> None: ...

    def seen(self) -> object:
        """Return whether the task is run by the pool's tracer."""
        import celery.app.trace  # noqa: PLC0415

        return celery.app.trace.build_tracer.__module__ == "celery_aio_pool.tracer"


class Tenants(Plain):
    """An app of tenant-schemas-celery in a project of django-tenants."""

    def __init__(self) -> None:
        from tenant_schemas_celery.app import CeleryApp  # noqa: PLC0415

        self.app_class = CeleryApp

    def seen(self) -> object:
        """Return whether the task runs in the schema of the tenant that published it."""
        from django.db import connection  # noqa: PLC0415

        return connection.schema_name == "first"

    @contextlib.contextmanager
    def trace(self) -> Iterator[None]:
        """Publish as a tenant."""
        from django_tenants.utils import schema_context  # noqa: PLC0415

        with schema_context("first"):
            yield


class Abortable(Plain):
    """Tasks that may be aborted."""

    def __init__(self) -> None:
        from celery.contrib.abortable import AbortableTask  # noqa: PLC0415

        self.base = AbortableTask

    def seen(self) -> object:
        """Return whether the running task knows that nobody has aborted it."""
        task: Any = current_task
        return task.is_aborted() is False


class Results(Plain):
    """Django's database as result backend."""

    def seen(self) -> object:
        """Return whether the app stores results there."""
        return type(current_task.backend).__module__.startswith("django_celery_results")


def activate() -> Plain:
    """Return the library that is active in this process."""
    if "DJANGO_SETTINGS_MODULE" in os.environ:
        import django  # noqa: PLC0415

        django.setup()
    active: Plain = globals()[os.environ.get(LIBRARY_VARIABLE, "Plain")]()
    return active
