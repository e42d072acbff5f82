"""Metrics for Prometheus, served by the worker's main process and by beat.

from celery_redlock.observers import prometheus
prometheus.observe(app, port=9808, beat_port=9809)
"""

from __future__ import annotations

import bisect
import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from typing import Any

from billiard import current_process
from celery import Celery, bootsteps
from celery.concurrency.prefork import TaskPool
from celery.signals import beat_init, worker_process_init

from celery_redlock.beat.liveness import age
from celery_redlock.config.task_config import is_singleton

from .counts import UNKNOWN, LocalCounts, Series, SharedCounts
from .measurements import BUCKETS_S, COUNTERS, GAUGES, HISTOGRAMS, Recorder

try:
    from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
except ImportError as error:
    raise ImportError(
        "celery_redlock.observers.prometheus needs prometheus-client: "
        "pip install 'celery-redlock[prometheus]'"
    ) from error

logger = logging.getLogger(__name__)
_BOUNDS = (*map(str, BUCKETS_S), "+Inf")
_PREFIX = "celery_redlock_"


def observe(
    app: Celery,
    *,
    port: int | None = None,
    beat_port: int | None = None,
    address: str = "127.0.0.1",
    registry: CollectorRegistry = REGISTRY,
) -> PrometheusMetrics:
    """Count what the app's singleton tasks and beat do; call it once, where the app is made.

    Args:
        app: The app.
        port: Port on which a worker serves the registry; None: it is served elsewhere.
        beat_port: The same for beat.
        address: Address to listen on; "0.0.0.0" for a Prometheus on another host.
        registry: Registry to which the metrics are added.

    Returns:
        The collector that was added to the registry.
    """
    metrics = PrometheusMetrics(app)
    registry.register(metrics)
    metrics.connect(app)

    def on_beat(sender: Any, **_: Any) -> None:
        if sender.app is app:
            metrics.begin_beat(sender.scheduler.schedule.values())
            _Server(beat_port, address, registry).start()

    app.steps["worker"].add(_step(metrics, _Server(port, address, registry)))
    worker_process_init.connect(metrics.begin_process, weak=False)
    # A worker's beat (-B) sends it, too, and `beat_embedded_init` after it.
    beat_init.connect(on_beat, weak=False)
    return metrics


def _step(metrics: PrometheusMetrics, server: _Server) -> type[bootsteps.StartStopStep]:
    class ServeMetrics(bootsteps.StartStopStep):
        """Step that shares the numbers with a prefork pool, and serves them."""

        requires = ("celery.worker.components:Pool",)

        def create(self, parent: Any) -> None:
            # Here and not in `start`: the pool may have forked by then.
            forks = getattr(parent, "pool_start_method", "fork") == "fork"
            if forks and issubclass(parent.pool_cls, TaskPool):
                metrics.share()

        def start(self, parent: Any) -> None:  # noqa: ARG002  # as Celery calls it
            server.start()

        def stop(self, parent: Any) -> None:  # noqa: ARG002  # as Celery calls it
            server.stop()

        terminate = stop

    return ServeMetrics


class _Server:
    """Server of a registry; without a port it serves nothing."""

    def __init__(self, port: int | None, address: str, registry: CollectorRegistry) -> None:
        self._port = port
        self._address = address
        self._registry = registry
        self._served: Any = None

    def start(self) -> None:
        """Start the server on a thread; if that fails, the process works on without metrics."""
        if self._port is None:
            return
        try:
            self._served = start_http_server(self._port, self._address, self._registry)
        except OSError as error:
            logger.error(  # noqa: TRY400
                "metrics not served address=%s port=%d error=%s", self._address, self._port, error
            )

    def stop(self) -> None:
        """Stop the server."""
        served, self._served = self._served, None
        if served:
            server, thread = served
            server.shutdown()
            server.server_close()
            thread.join()


class PrometheusMetrics(Recorder):
    """Collector of the measurements of an app, for a registry of Prometheus.

    Attributes:
        is_beat: Whether this process is beat.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._pid = os.getpid()
        self._counts: LocalCounts | SharedCounts = LocalCounts()
        self._votes: tuple[int, int, int] | None = None
        self.is_beat = False
        self._scheduled: set[str] = set()

    def share(self) -> None:
        """In the worker's main process: share the numbers with the pool's processes to come."""
        counts = SharedCounts([*self._known(), *self._series(UNKNOWN)])
        for series, number in self._counts.read().items():
            counts.add(series, number)
        self._counts = counts

    def begin_process(self, **_: Any) -> None:
        """In a new pool process: count in its own row."""
        if isinstance(self._counts, SharedCounts):
            process: Any = current_process()
            self._counts.begin_process(process.index)

    def begin_beat(self, entries: Iterable[Any]) -> None:
        """In beat: show the ticks of the tasks of these entries, and of the settings', from now on.

        The entries of a scheduler that keeps them in a table are in no setting.
        """
        if os.getpid() != self._pid:
            # A worker's beat (-B) is forked with the numbers of the worker, which serves them.
            self._counts, self._votes = LocalCounts(), None
        self._scheduled = {str(entry.task) for entry in entries}
        self.is_beat = True

    # ---- Recorder

    def count(self, name: str, task: str, outcome: str = "") -> None:
        """Add one to a counter."""
        self._counts.add(Series(name, task, outcome), 1.0)

    def observe(self, name: str, task: str, seconds: float) -> None:
        """Add a value to a histogram."""
        bound = _BOUNDS[bisect.bisect_left(BUCKETS_S, seconds)]
        self._counts.add(Series(name, task, bound), 1.0)
        self._counts.add(Series(name, task, "sum"), max(0.0, seconds))

    def change(self, name: str, task: str, by: int) -> None:
        """Add to a gauge."""
        self._counts.add(Series(name, task, is_gauge=True), by)

    def set_votes(self, votes: int, nodes: int, needed: int) -> None:
        """Record how many of the nodes vote, and how many must."""
        self._votes = votes, nodes, needed

    # ---- collector

    def describe(self) -> list[Metric]:
        """Return nothing: the registry need not collect to know the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, those of which nothing is known yet as zero."""
        numbers = dict.fromkeys(self._known(), 0.0)
        numbers |= self._counts.read()
        for name, (text, outcomes) in COUNTERS.items():
            labels = ["task", "outcome"] if outcomes else ["task"]
            counter = CounterMetricFamily(_PREFIX + name, text, labels=labels)
            for one, number in sorted(numbers.items()):
                if one.metric == name:
                    counter.add_metric([one.task, one.label][: len(labels)], number)
            yield counter
        for name, text in HISTOGRAMS.items():
            yield _histogram(name, text, numbers)
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(_PREFIX + name, text, labels=["task"])
            for one, number in sorted(numbers.items()):
                if one.metric == name:
                    gauge.add_metric([one.task], number)
            yield gauge
        yield from self._of_process()

    def _of_process(self) -> Iterator[Metric]:
        if self._votes:
            votes, nodes, needed = self._votes
            yield GaugeMetricFamily(_PREFIX + "nodes", "Lock nodes that are configured.", nodes)
            yield GaugeMetricFamily(_PREFIX + "nodes_up", "Lock nodes that vote.", votes)
            text = "Lock nodes that may fail before no lock can be acquired; below 0: no quorum."
            yield GaugeMetricFamily(_PREFIX + "quorum_margin", text, votes - needed)
        if self.is_beat and (seconds := age(self._app)) is not None:
            text = "Time since beat's loop ran on this host and could publish."
            yield GaugeMetricFamily(_PREFIX + "beat_age_seconds", text, seconds)

    def _known(self) -> list[Series]:
        """Return the series of every singleton task, and in beat of every scheduled task.

        A tick that was counted, of an entry that came later, has the others' series, too.
        """
        tasks = {name for name, task in self._app.tasks.items() if is_singleton(task)}
        scheduled: set[str] = set()
        if self.is_beat:
            configured = {entry["task"] for entry in self._app.conf.beat_schedule.values()}
            counted = {one.task for one in self._counts.read() if one.metric == "ticks"}
            scheduled = configured | self._scheduled | counted
        return [
            one
            for task in tasks | scheduled
            for one in self._series(task)
            if task in (scheduled if one.metric == "ticks" else tasks)
        ]

    def _series(self, task: str) -> Iterator[Series]:
        for name, (_, outcomes) in COUNTERS.items():
            yield from (Series(name, task, outcome) for outcome in outcomes or ("",))
        for name in HISTOGRAMS:
            yield from (Series(name, task, label) for label in (*_BOUNDS, "sum"))
        for name in GAUGES:
            yield Series(name, task, is_gauge=True)


def _histogram(name: str, text: str, numbers: dict[Series, float]) -> Metric:
    family = HistogramMetricFamily(_PREFIX + name + "_seconds", text, labels=["task"])
    for task in sorted({one.task for one in numbers if one.metric == name}):
        inside = [numbers.get(Series(name, task, bound), 0.0) for bound in _BOUNDS]
        total = numbers.get(Series(name, task, "sum"), 0.0)
        upto = list(zip(_BOUNDS, itertools.accumulate(inside), strict=True))
        family.add_metric([task], upto, total)
    return family
