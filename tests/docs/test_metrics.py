"""The metrics page, the dashboard and the alerts name the metrics that there are."""

from __future__ import annotations

import json
import re

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest

from celery_redlock import SingletonTask
from celery_redlock.observers import prometheus
from celery_redlock.observers.measurements import COUNTERS, GAUGES, HISTOGRAMS
from celery_redlock.observers.prometheus import PrometheusMetrics
from tests.support.root import ROOT
from tools.docs.markdown import codes, tables

DOCS = ROOT / "docs"
NAME = re.compile(r"celery_redlock_[a-z_]+")


def body() -> None: ...


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """Every metric of a process that is beat and a worker, of one task."""
    monkeypatch.setattr(prometheus, "age", lambda app: 1.0)
    registry = CollectorRegistry()
    with Celery("bank", set_as_current=False) as app:
        app.task(base=SingletonTask, name="shown", shared=False)(body)
        metrics = PrometheusMetrics(app)
        metrics.is_beat = True
        metrics.set_votes(3, 3, 2)
        for outcome in COUNTERS["ticks"][1]:
            metrics.count("ticks", "shown", outcome)
        registry.register(metrics)
    return registry


@pytest.fixture
def types(registry: CollectorRegistry) -> dict[str, str]:
    """Return the type of each metric that is served, by its name in a query."""
    served = generate_latest(registry).decode()
    return dict(re.findall(r"# TYPE (celery_redlock_\w+) (\w+)", served))


def test_the_metrics_page_lists_every_metric_with_its_outcomes(types: dict[str, str]) -> None:
    [table] = [table for table in tables(DOCS / "reference/metrics.md") if "metric" in table[0]]
    shown = {codes(row["metric"])[0]: row["type"].partition(",")[0] for row in table}
    assert shown == types
    outcomes = {codes(row["metric"])[0]: tuple(codes(row["outcomes"])) for row in table}
    for name, (_, expected) in COUNTERS.items():
        assert outcomes[f"celery_redlock_{name}_total"] == expected


def test_the_dashboard_shows_every_metric_and_no_other(types: dict[str, str]) -> None:
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    shown = {name.removesuffix("_bucket") for query in queries for name in NAME.findall(query)}
    assert shown == set(types)


def test_every_alert_asks_for_known_metrics_and_has_its_remedy(types: dict[str, str]) -> None:
    rules = (DOCS / "monitoring/alerts.yaml").read_text()
    page = (DOCS / "how-to/monitor.md").read_text()
    assert set(NAME.findall(rules)) <= set(types)
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert alerts == re.findall(r"^### (Redlock\w+)$", page, re.MULTILINE)
    assert len(alerts) == rules.count("expr:")


def labels_in(query: str) -> set[tuple[str, str]]:
    """Return the metrics of a query, each with the labels that it is asked for by."""
    selected = {
        (name, label)
        for name, selector in re.findall(rf"({NAME.pattern})\{{([^}}]*)\}}", query)
        for label in re.findall(r"(\w+)\s*[=!]", selector)
    }
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query))))
    return selected | {(name, label) for name in NAME.findall(query) for label in grouped}


def queries() -> list[str]:
    """Return the queries of the dashboard, those of its variables too, and of the alerts."""
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text())
    variables = [str(one["query"]) for one in dashboard["templating"]["list"]]
    rules = (DOCS / "monitoring/alerts.yaml").read_text().split("- alert:")[1:]
    return [
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
        *(re.sub(r"label_values\((\w+), (\w+)\)", r"sum by (\2) (\1)", one) for one in variables),
        *(rule.partition("expr:")[2].partition("labels:")[0] for rule in rules),
    ]


@pytest.mark.parametrize("query", queries())
def test_each_label_that_is_asked_for_is_one_of_its_metric(
    registry: CollectorRegistry, query: str
) -> None:
    known = {
        (sample.name, label)
        for family in registry.collect()
        for sample in family.samples
        for label in sample.labels
    }
    assert labels_in(query) <= known
    outcomes = {outcome for _, possible in COUNTERS.values() for outcome in possible}
    assert set(re.findall(r'outcome="(\w+)"', query)) <= outcomes


def test_the_legends_name_labels_that_their_query_keeps() -> None:
    dashboard = json.loads((DOCS / "monitoring/dashboard.json").read_text())
    all_named: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
            assert named <= {label for _, label in labels_in(target["expr"])}, panel["title"]
            all_named |= named
    assert "task" in all_named


def test_the_metrics_page_lists_every_span_and_instrument() -> None:
    source = (ROOT / "celery_redlock/observers/opentelemetry.py").read_text()
    page = DOCS / "reference/metrics.md"
    by_column = {next(iter(table[0])): table for table in tables(page)}
    spans = {codes(row["span"])[0] for row in by_column["span"]}
    assert spans == set(re.findall(r'_span\("([\w ]+)"', source))
    events = {codes(row["span event"])[0] for row in by_column["span event"]}
    assert events == set(re.findall(r'add_event\("([\w.]+)"', source))
    names = {*COUNTERS, *GAUGES, *(f"{name}.duration" for name in HISTOGRAMS)}
    names |= {"nodes", "nodes.up", "quorum.margin"}
    shown = set(re.findall(r"`celery\.redlock\.([a-z.]+)`", page.read_text()))
    assert shown == names
