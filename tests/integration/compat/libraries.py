"""The libraries that singleton tasks are tried beside, and how each is made active.

As its own documentation says: by a command in front, by the environment, or in the app's module
(`active`). The packages and their versions are those of the extra `compat`, or as named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import requires, version
from types import MappingProxyType

from celery_redlock.config.options import Lifetime

TRIES = {
    "tasks": "tasks with all lifetimes",
    "beat": "two replicas of beat",
    "check-ins": "two replicas of beat with Crons",
    "refused": "a task that is refused",
    "shown": "what it shows",
}
"""What is tried, for the page."""
WAITING = (Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_AND_WHILE_EXECUTING)
"""The lifetimes that are also tried with `wait`."""

_NONE: Mapping[str, str] = MappingProxyType({})
_DJANGO = {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.beside_django"}


@dataclass(frozen=True, slots=True)
class Library:
    """One library, in one version.

    Attributes:
        name: Its name on PyPI.
        module: Class in `active` that makes it active in a process.
        tries: What is tried; see `TRIES`.
        remark: What users of it should know, for the page.
        version: Version that is tried. '': that of the extra `compat`.
        beside: Other packages that it is used with.
        prefix: Modules of Python that start each process, with arguments.
        env: Environment of each process.
        conf: More of Celery's configuration.
        pool: Pool of the worker.
        workers: How many workers there are: of a pool that runs one task at a time, two.
        args: More arguments of ``celery worker``.
        beat: Scheduler that beat is built on. '': no beat runs.
    """

    name: str
    module: str
    remark: str
    tries: tuple[str, ...] = ("tasks",)
    version: str = ""
    beside: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NONE)
    conf: Mapping[str, object] = field(default_factory=dict)
    pool: str = "prefork"
    workers: int = 1
    args: tuple[str, ...] = ()
    beat: str = ""

    @property
    def tested(self) -> str:
        """The version that is tried."""
        return self.version or pinned().get(self.name) or version(self.name)

    @property
    def shown(self) -> str:
        """The versions as the page shows them."""
        versions = [requirement.partition("==")[2] for requirement in self.requirements]
        return " + ".join(versions) or "the installed one"

    @property
    def requirements(self) -> list[str]:
        """What `pip` is asked to install."""
        wanted = pinned() | ({self.name: self.version} if self.version else {})
        # Celery itself is there.
        return [f"{name}=={wanted[name]}" for name in (self.name, *self.beside) if name in wanted]

    def __str__(self) -> str:
        return f"{self.name}-{self.tested}"


def pinned() -> dict[str, str]:
    """Return the version of each package of the extra `compat`."""
    found = {}
    for requirement in requires("celery-redlock") or ():
        if matched := re.match(r"([\w.-]+)==([\w.]+) *;.*extra == ['\"]compat['\"]", requirement):
            found[matched[1]] = matched[2]
    return found


_NESTS = "it nests its headers into every message"
_SENTRY = f"{_NESTS}. Crons opens one check-in per tick, at the beat replica that publishes it"
_SENTRY_1 = f"{_NESTS}. Crons of this version was not tried"

LIBRARIES = (
    Library(
        "ddtrace", "DDTrace",
        f"with distributed tracing {_NESTS}",
        prefix=("ddtrace.commands.ddtrace_run",),
        env={
            "DD_CELERY_DISTRIBUTED_TRACING": "true",
            "DD_TRACE_AGENT_URL": "http://127.0.0.1:9",
            "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
            "DD_REMOTE_CONFIGURATION_ENABLED": "false",
        },
    ),
    Library("sentry-sdk", "Sentry", _SENTRY_1, version="1.45.1"),
    Library("sentry-sdk", "Sentry", _SENTRY, version="2.53.0", tries=("tasks", "check-ins")),
    Library("sentry-sdk", "Sentry", _SENTRY, tries=("tasks", "check-ins")),
    Library(
        "opentelemetry-instrumentation-celery", "OpenTelemetry",
        "the spans of a lock lie within Celery's span of the task",
    ),
    Library(
        "newrelic", "NewRelic", "",
        prefix=("newrelic.admin", "run-program"),
        env={
            "NEW_RELIC_LICENSE_KEY": "0" * 40,
            "NEW_RELIC_APP_NAME": "compat",
            "NEW_RELIC_DEVELOPER_MODE": "true",
            "NEW_RELIC_STARTUP_TIMEOUT": "10",
        },
    ),
    Library(
        "elastic-apm", "ElasticAPM", "",
        env={"ELASTIC_APM_DISABLE_SEND": "true", "ELASTIC_APM_CENTRAL_CONFIG": "false"},
    ),
    Library(
        "celery-batches", "Batches",
        "a singleton task with `base=Batches` is refused when it is defined: make it a plain task "
        "and lock inside its body. Other singleton tasks of the worker are locked",
        tries=("tasks", "refused"),
    ),
    Library(
        "celery-aio-pool", "AioPool",
        "an `async def` body is refused when it is defined: write a plain function that awaits "
        "inside, with `asyncio.run(…)`. Plain functions are locked in its pool",
        tries=("tasks", "refused"),
        env={"CELERY_CUSTOM_WORKER_POOL": "celery_aio_pool.pool:AsyncIOPool"},
        pool="custom",
        workers=2,
    ),
    Library(
        "tenant-schemas-celery", "Tenants",
        "tenants share the keys of their tasks unless you "
        "[part them](keys.md#tenants-with-a-schema-each)",
        beside=("django-tenants",),
        env=_DJANGO,
    ),
    Library(
        "celery", "Abortable",
        "`base=AbortableTask` of `celery.contrib.abortable`",
    ),
    Library(
        "flower", "Plain", "it shows a duplicate as `DEDUPLICATED`",
        tries=("tasks", "shown"), args=("-E",),
    ),
    Library(
        "celery-redbeat", "Plain", "all replicas of beat are active; RedBeat's own lock is off",
        tries=("tasks", "beat"), beat="redbeat.RedBeatScheduler",
    ),
    Library(
        "django-celery-beat", "Plain", "all replicas of beat share its tables",
        tries=("tasks", "beat"),
        env=_DJANGO,
        beat="django_celery_beat.schedulers:DatabaseScheduler",
    ),
    Library(
        "django-celery-results", "Results", "a duplicate's state is stored as `REVOKED`",
        env=_DJANGO,
        conf={"result_backend": "django-db", "result_extended": True},
    ),
)  # fmt: skip
