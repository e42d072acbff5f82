"""The picture of the dashboard, from a real run: `python -m tools.docs.dashboard_picture`.

A worker, beat and three nodes run for a while, and a real Prometheus (Debian's `prometheus`)
scrapes them. There are conflicts, and two nodes are down for some seconds. Then Prometheus
evaluates the queries of docs/monitoring/dashboard.json. The panels are drawn here, not by Grafana.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery_redlock.testing import Server, Servers, free_port, start_servers
from tests.support.eventually import eventually
from tests.support.root import ROOT
from tools.benchmarks.panels import Panel, sheet
from tools.docs.commands import environment

FILE = ROOT / "docs" / "how-to" / "images" / "dashboard.svg"
DASHBOARD = ROOT / "docs" / "monitoring" / "dashboard.json"
SECONDS = 75
_STEP_S = 2
_VARIABLES = {"$__rate_interval": "10s", "$task": ".*"}
_DOWN_FROM_S, _DOWN_UNTIL_S = 30, 42
_PROJECT = """
import random, time

from celery import Celery
from celery_redlock import singleton_task
from celery_redlock.observers import prometheus

app = Celery("bank", broker={broker!r})
app.conf.update(
    redlock_nodes={nodes!r}, redlock_restart_guard=False, task_ignore_result=True,
    beat_schedule={{"poll": {{"task": "bank.poll", "schedule": 2.0}}}},
)
prometheus.observe(app, port={worker_port}, beat_port={beat_port})


@singleton_task(app=app, lock_key="{{account}}")
def sync(account):
    time.sleep(random.uniform(0.1, 0.8))


@singleton_task(app=app, lock_key="{{shop}}", lock_on_conflict="coalesce")
def refresh(shop):
    time.sleep(random.uniform(0.2, 1.5))


@singleton_task(app=app, lock_key=[], lock_on_conflict="wait", lock_wait=20.0)
def report():
    time.sleep(0.4)


@singleton_task(app=app, lock_key=[], lock_ttl=4)
def export():
    time.sleep(60)


@singleton_task(app=app, lock_key=[], lock_on_conflict="reschedule")
def poll():
    time.sleep(0.3)
"""
_PROMETHEUS = """
global: {{scrape_interval: {step}s, evaluation_interval: {step}s}}
scrape_configs:
  - job_name: bank
    static_configs: [{{targets: ["127.0.0.1:{worker_port}", "127.0.0.1:{beat_port}"]}}]
"""


@contextmanager
def started(folder: Path, name: str, *command: str) -> Iterator[None]:
    """Run a program; its log is in the folder."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.kill()  # its tasks are of no interest any more
            process.wait()


def asked(port: int, path: str, **query: Any) -> Any:
    """Return the data of an answer of Prometheus."""
    encoded = urllib.parse.urlencode(query)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{encoded}") as answer:
        return json.load(answer)["data"]


def is_scraping(port: int) -> bool:
    """Return whether Prometheus reaches worker and beat."""
    try:
        targets = asked(port, "targets")["activeTargets"]
    except OSError:
        return False
    return [target["health"] for target in targets] == ["up", "up"]


def publish(folder: Path, nodes: Servers, ends_at: float) -> None:
    """Publish tasks whose locks are often held, and have two nodes fail for a while."""
    sys.path.insert(0, str(folder))
    bank: Any = importlib.import_module("bank")
    began, number = time.monotonic(), 0
    bank.export.delay()
    down: Sequence[Server] = ()
    while time.monotonic() < ends_at:
        bank.sync.delay(number % 3)
        if number % 2:
            bank.refresh.delay(number % 4)
        if number % 7 == 0:
            bank.report.delay()
            bank.report.delay()
        number += 1
        time.sleep(0.25)
        ago = time.monotonic() - began
        if not down and _DOWN_FROM_S < ago < _DOWN_UNTIL_S:
            down = nodes[:2]
            for node in down:
                node.kill()
        if down and ago > _DOWN_UNTIL_S:
            for node in down:
                node.start()
            down = ()


def panels(port: int, first: float, last: float) -> Iterator[Panel]:
    """Yield the dashboard's panels with what Prometheus returns for their queries."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        series: dict[str, list[tuple[float, float]]] = {}
        for target in panel["targets"]:
            query = target["expr"]
            for name, text in _VARIABLES.items():
                query = query.replace(name, text)
            found = asked(port, "query_range", query=query, start=first, end=last, step=_STEP_S)
            for one in found["result"]:
                legend = target.get("legendFormat") or panel["title"]
                for label, text in one["metric"].items():
                    legend = legend.replace(f"{{{{{label}}}}}", text)
                pairs = [(at, float(value)) for at, value in one["values"]]
                series[legend] = [pair for pair in pairs if math.isfinite(pair[1])]
        drawn = {legend: points for legend, points in series.items() if points}
        unit = panel["fieldConfig"]["defaults"].get("unit", "")
        yield Panel(panel["title"], unit, panel["gridPos"], drawn, panel["type"] == "stat")


@dataclass(frozen=True)
class Stage:
    """A project with a worker and beat that run, and its nodes.

    Attributes:
        folder: Where its module is, and its logs.
        nodes: The three nodes.
        worker_port: Port of the worker's metrics.
        beat_port: The same of beat.
    """

    folder: Path
    nodes: Servers
    worker_port: int
    beat_port: int


@contextmanager
def stage() -> Iterator[Stage]:
    """Run a worker and beat on three nodes."""
    with tempfile.TemporaryDirectory() as name, Server() as broker, start_servers(3) as nodes:
        now = Stage(Path(name), nodes, free_port(), free_port())
        module = _PROJECT.format(
            broker=broker.url,
            nodes=nodes.urls,
            worker_port=now.worker_port,
            beat_port=now.beat_port,
        )
        (now.folder / "bank.py").write_text(module)
        celery = (sys.executable, "-m", "celery", "-A", "bank")
        with (
            started(now.folder, "worker", *celery, "worker", "-c", "8", "-P", "threads"),
            started(now.folder, "beat", *celery, "beat", "-S", "redlock"),
        ):
            yield now


def main() -> None:
    """Run it all, and write the picture."""
    program = shutil.which("prometheus")
    if program is None:
        sys.exit("prometheus is not installed (on Debian: apt-get install prometheus)")
    port = free_port()
    with stage() as now:
        configuration = _PROMETHEUS.format(
            step=_STEP_S, worker_port=now.worker_port, beat_port=now.beat_port
        )
        (now.folder / "prometheus.yml").write_text(configuration)
        options = (
            "--config.file=prometheus.yml",
            f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.path=data",
        )
        with started(now.folder, "prometheus", program, *options):
            eventually(lambda: is_scraping(port), within=300)
            first = time.time()
            publish(now.folder, now.nodes, time.monotonic() + SECONDS)
            version = asked(port, "status/buildinfo")["version"]
            drawn = list(panels(port, first, first + SECONDS))
    note = (
        f"The queries were evaluated by Prometheus {version} over a run of {SECONDS} s; two of "
        f"three nodes were down for {_DOWN_UNTIL_S - _DOWN_FROM_S} s of it. Not drawn by Grafana."
    )
    picture = sheet("celery-redlock", note, drawn, (first, first + SECONDS))
    FILE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
