"""What Prometheus gets: every series from the start, and none with a key."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.signals import beat_embedded_init, beat_init, worker_process_init
from celery.worker.components import Pool
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock.observers import prometheus
from celery_redlock.observers.counts import UNKNOWN, SharedCounts
from celery_redlock.observers.measurements import COUNTERS, HISTOGRAMS
from celery_redlock.observers.prometheus import PrometheusMetrics
from tests.support.fakes.forged import NewTask, deliver
from tests.support.root import ROOT


@pytest.fixture
def registry(app: Celery, new_task: NewTask) -> tuple[CollectorRegistry, PrometheusMetrics]:
    new_task()
    registry, metrics = CollectorRegistry(), PrometheusMetrics(app)
    registry.register(metrics)
    return registry, metrics


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"celery_redlock_{name}", {"task": "t", **labels})


def test_every_series_of_a_singleton_task_begins_at_zero(registry: Any) -> None:
    registry, _ = registry
    for name, (_, outcomes) in COUNTERS.items():
        for outcome in outcomes:
            expected = None if name == "ticks" else 0.0
            assert value(registry, f"{name}_total", outcome=outcome) == expected
    for name in HISTOGRAMS:
        assert value(registry, f"{name}_seconds_bucket", le="+Inf") == 0.0
    assert value(registry, "held") == value(registry, "waiting") == 0.0
    assert b"celery.chord" not in generate_latest(registry), "only singleton tasks are shown"


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_is_recorded_is_shown(registry: Any, is_shared: bool) -> None:
    task = UNKNOWN if is_shared else "made later"
    registry, metrics = registry
    metrics.count("acquired", "t")
    if is_shared:
        metrics.share()
    metrics.count("acquired", "t")
    metrics.count("conflicts", "t", "skip")
    metrics.change("held", "t", 2)
    metrics.change("held", "t", -1)
    for seconds in (0.001, 0.0011, 7200.0):
        metrics.observe("hold", "t", seconds)
    metrics.observe("wait", "made later", -0.5)
    assert value(registry, "acquired_total") == 2
    assert value(registry, "conflicts_total", outcome="skip") == 1
    assert value(registry, "held") == 1
    counts = [value(registry, "hold_seconds_bucket", le=le) for le in ("0.001", "0.002", "+Inf")]
    assert counts == [1, 2, 3]
    assert value(registry, "hold_seconds_sum") == pytest.approx(7200.0021)
    assert value(registry, "wait_seconds_bucket", le="+Inf", task=task) == 1
    assert value(registry, "wait_seconds_sum", task=task) == 0


def test_the_margin_is_what_may_fail_before_the_quorum_is_lost(registry: Any) -> None:
    registry, metrics = registry
    assert registry.get_sample_value("celery_redlock_quorum_margin") is None
    metrics.set_votes(3, 5, 3)
    assert registry.get_sample_value("celery_redlock_quorum_margin") == 0
    assert registry.get_sample_value("celery_redlock_nodes_up") == 3
    assert registry.get_sample_value("celery_redlock_nodes") == 5
    assert b"# HELP celery_redlock_nodes" in generate_latest(registry)


def test_beat_shows_its_scheduled_tasks_at_zero(app: Celery, registry: Any) -> None:
    registry, metrics = registry
    app.conf.beat_schedule = {"often": {"task": "idle", "schedule": 1.0}}
    ticks = "celery_redlock_ticks_total"
    given = {"task": "idle", "outcome": "missed"}
    assert registry.get_sample_value(ticks, given) is None, "a worker has no ticks"
    metrics.is_beat = True
    for outcome in ("published", "elsewhere", "missed", "twice"):
        given = {"task": "idle", "outcome": outcome}
        assert registry.get_sample_value("celery_redlock_ticks_total", given) == 0.0


def test_beat_shows_the_tasks_of_a_table_at_zero(app: Celery, registry: Any) -> None:
    registry, metrics = registry
    metrics.count("ticks", "early", "elsewhere")
    metrics.count("acquired", "t")
    metrics.begin_beat([SimpleNamespace(task="nightly")])
    metrics.count("ticks", "later", "published")
    for task, elsewhere in (("nightly", 0.0), ("later", 0.0), ("early", 1.0)):
        given = {"task": task, "outcome": "elsewhere"}
        assert registry.get_sample_value("celery_redlock_ticks_total", given) == elsewhere
        given = {"task": task, "outcome": "missed"}
        assert registry.get_sample_value("celery_redlock_ticks_total", given) == 0.0
        assert value(registry, "hold_seconds_sum", task=task) is None
    assert value(registry, "ticks_total", outcome="missed") is None, "`t` is not scheduled"


def test_only_beat_shows_its_age_if_it_is_known(
    app: Celery, registry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, metrics = registry
    ages = {app: 2.5}
    monkeypatch.setattr(prometheus, "age", ages.get)
    assert registry.get_sample_value("celery_redlock_beat_age_seconds") is None
    metrics.begin_beat([])
    assert registry.get_sample_value("celery_redlock_beat_age_seconds") == 2.5
    assert b"# HELP celery_redlock_beat_age_seconds" in generate_latest(registry)
    ages.clear()
    assert registry.get_sample_value("celery_redlock_beat_age_seconds") is None


@pytest.mark.parametrize(
    ("observer", "module"),
    [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")],
)
def test_a_missing_extra_names_the_line_that_installs_it(observer: str, module: str) -> None:
    code = f"import sys; sys.modules['{module}'] = None; import celery_redlock.observers.{observer}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"pip install 'celery-redlock[{observer}]'" in done.stderr
    assert done.returncode == 1


# ---- who serves them


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was started (its port and address) and stopped."""
    calls: list[Any] = []

    class Server:
        def shutdown(self) -> None:
            calls.append("shutdown")

        def server_close(self) -> None:
            calls.append("close")

        def join(self) -> None:
            calls.append("join")

    def start(port: int, address: str, registry: CollectorRegistry) -> tuple[Server, Server]:
        assert b"celery_redlock_acquired" in generate_latest(registry)
        calls.append((port, address))
        return Server(), Server()

    monkeypatch.setattr(prometheus, "start_http_server", start)
    return calls


class Beat:
    """A process of beat, which a signal names as its sender."""

    def __init__(self, app: object) -> None:
        self.app = app
        self.scheduler = SimpleNamespace(schedule={})


def step_of(app: Celery, **ports: Any) -> tuple[Any, PrometheusMetrics]:
    """Observe an app; return the worker's step, and the metrics."""
    before = set(app.steps["worker"])
    metrics = prometheus.observe(app, **{"registry": CollectorRegistry(), **ports})
    [step] = set(app.steps["worker"]) - before
    return step.__new__(step), metrics


def test_an_observed_app_is_counted_in_the_registry(app: Celery, new_task: NewTask) -> None:
    registry = CollectorRegistry()
    step_of(app, registry=registry)
    deliver(new_task())
    assert value(registry, "acquired_total") == 1


def test_a_worker_serves_the_metrics_until_it_stops(app: Celery, served: list[Any]) -> None:
    step, _ = step_of(app, port=9808, beat_port=9809)
    assert step.requires == (f"{Pool.__module__}:{Pool.__name__}",)
    step.start(None)
    assert served == [(9808, "127.0.0.1")]
    step.stop(None)
    step.terminate(None)
    assert served[1:] == ["shutdown", "close", "join"]


def test_without_a_port_nothing_is_served(app: Celery, served: list[Any]) -> None:
    step, _ = step_of(app)
    step.start(None)
    step.stop(None)
    assert served == []


def test_a_port_in_use_leaves_the_worker_without_metrics(
    app: Celery, served: list[Any], monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    def fail(*_: Any) -> Any:
        raise OSError("Address already in use")

    monkeypatch.setattr(prometheus, "start_http_server", fail)
    step, _ = step_of(app, port=9808)
    step.start(None)
    step.stop(None)
    reason = "address=127.0.0.1 port=9808 error=Address already in use"
    assert log() == [("ERROR", f"metrics not served {reason}")]
    assert served == []


@pytest.mark.parametrize("signals", [[beat_init], [beat_init, beat_embedded_init]])
def test_only_the_beat_of_the_app_serves_its_metrics_once(
    app: Celery, served: list[Any], signals: list[Any]
) -> None:
    _, metrics = step_of(app, port=9808, beat_port=9809)
    for signal in signals:
        signal.send(sender=Beat(object()))
    assert (served, metrics.is_beat) == ([], False)
    for signal in signals:
        signal.send(sender=Beat(app))
    assert (served, metrics.is_beat) == ([(9809, "127.0.0.1")], True)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_beat_forked_by_a_worker_counts_on_its_own(
    registry: Any, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    registry, metrics = registry
    if is_shared:
        metrics.share()
    metrics.count("acquired", "t")
    metrics.set_votes(3, 3, 2)
    of_worker = metrics._counts
    monkeypatch.setattr(os, "getpid", lambda: -1)
    metrics.begin_beat([SimpleNamespace(task="idle")])
    metrics.count("ticks", "idle", "published")
    given = {"task": "idle", "outcome": "published"}
    assert registry.get_sample_value("celery_redlock_ticks_total", given) == 1
    assert value(registry, "acquired_total") == 0
    assert registry.get_sample_value("celery_redlock_nodes_up") is None
    assert not [one for one in of_worker.read() if one.metric == "ticks" and one.task == "idle"]


@pytest.mark.parametrize(
    ("pool", "method", "is_shared"),
    [
        (TaskPool, {"pool_start_method": "fork"}, True),
        (TaskPool, {}, True),  # of a Celery before 5.7
        (TaskPool, {"pool_start_method": "spawn"}, False),
        (SoloPool, {"pool_start_method": "fork"}, False),
    ],
)
def test_only_a_pool_that_forks_shares_the_numbers(
    app: Celery, served: list[Any], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, pool: Any, method: dict[str, str], is_shared: bool,
) -> None:  # fmt: skip
    began: list[int] = []
    monkeypatch.setattr(worker_process_init, "receivers", [])
    monkeypatch.setattr(SharedCounts, "begin_process", lambda _, index: began.append(index))
    monkeypatch.setattr(prometheus, "current_process", lambda: SimpleNamespace(index=3))
    step, metrics = step_of(app)
    step.create(SimpleNamespace(pool_cls=pool, **method))
    assert isinstance(metrics._counts, SharedCounts) is is_shared
    assert served == [], "the pool is forked before"
    worker_process_init.send(sender=None)
    assert began == [3] * is_shared
    assert caplog.records == [], "no receiver has failed"
