"""The metrics of real workers and beats equal what is known to have happened, exactly."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from celery_redlock.observers.measurements import COUNTERS
from celery_redlock.testing import free_port
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.beats import start_beats
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

Metrics = dict[tuple[str, str, str], float]


def scrape(port: int) -> Metrics:
    """Return the package's metrics by name, task and outcome; of histograms the counts alone."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        (sample.name.removeprefix("celery_redlock_"), sample.labels.get("task", ""),
         sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("celery_redlock_") and not sample.name.endswith("_bucket")
    }  # fmt: skip


def is_served(port: int) -> bool:
    try:
        return bool(scrape(port))
    except OSError:
        return False


def non_zero(metrics: Metrics, *names: str) -> Metrics:
    return {one: number for one, number in metrics.items() if one[0] in names and number}


def conflict_lines(worker: Worker, task: str) -> int:
    return len(worker.lines(f"lock conflict .* task={task} .* outcome={task}"))


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_metrics_of_a_scripted_run_equal_its_known_counts(
    new_project: NewProject, new_nodes: NewNodes, pool: str
) -> None:
    nodes = new_nodes(3)
    project = new_project("measured", nodes=nodes)
    port = free_port()
    worker = project.start_worker(pool=pool, concurrency=3, env={"METRICS_PORT": str(port)})
    eventually(partial(is_served, port))
    eventually(lambda: scrape(port).get(("quorum_margin", "", "")) == 1)
    at_first = scrape(port)
    for name, (_, outcomes) in COUNTERS.items():
        if name != "ticks":
            for outcome in outcomes or ("",):
                assert at_first[f"{name}_total", "skip", outcome] == 0.0
    assert at_first["hold_seconds_count", "skip", ""] == 0.0
    assert (at_first["nodes", "", ""], at_first["nodes_up", "", ""]) == (3, 3)

    run = _Script(project, worker, port, pool)
    run.meet(run.tasks.skip, duplicates=3)
    run.meet(run.tasks.complete, duplicates=2)
    run.meet(run.tasks.raise_, duplicates=1)
    run.come_back(run.tasks.reschedule)
    run.come_back(run.tasks.coalesce)
    run.wait_in_worker()
    run.lose()
    if pool == "prefork":
        run.die()
    nodes[0].kill()
    nodes[1].kill()
    eventually(lambda: scrape(port)["quorum_margin", "", ""] == -1)
    run.tasks.raise_.delay("without a quorum").get(propagate=False, timeout=PATIENCE)

    def is_settled() -> bool:
        # A body's result is there before its worker has counted its end.
        metrics = scrape(port)
        counted = non_zero(metrics, *(f"{name}_total" for name in COUNTERS))
        return counted == run.expected() and not non_zero(metrics, "held", "waiting")

    try:
        eventually(is_settled)
    finally:
        shown = non_zero(scrape(port), *(f"{name}_total" for name in COUNTERS))
        assert shown == run.expected()
    metrics = scrape(port)
    assert non_zero(metrics, "held", "waiting") == {}
    for task in ("skip", "wait", "coalesce"):
        acquired = metrics["acquired_total", task, ""]
        assert metrics["acquire_seconds_count", task, ""] == acquired
        assert metrics["hold_seconds_count", task, ""] == acquired
    assert non_zero(metrics, "wait_seconds_count") == {("wait_seconds_count", "wait", ""): 1.0}


class _Script:
    """Script of what tasks do, and what must have been counted afterwards."""

    def __init__(self, project: Project, worker: Worker, port: int, pool: str) -> None:
        self.project, self.worker, self.port, self.pool = project, worker, port, pool
        self.tasks: Any = project.tasks
        self._acquired: dict[str, int] = {}

    def _hold(self, task: Any, key: str) -> Callable[[], None]:
        """Have a task hold its lock until the returned function is called."""
        gate = f"{key} {self.pool}"
        holder = task.delay(key, gate)
        self.project.wait_for_note("begin", key=key)
        eventually(lambda: scrape(self.port)["held", task.name, ""] == 1)
        self._acquired[task.name] = self._acquired.get(task.name, 0) + 1

        def release() -> None:
            self.project.open(gate)
            holder.get(timeout=PATIENCE)

        return release

    def meet(self, task: Any, duplicates: int) -> None:
        release = self._hold(task, f"{task.name} {self.pool}")
        for _ in range(duplicates):
            task.delay(f"{task.name} {self.pool}").get(propagate=False, timeout=PATIENCE)
        release()

    def come_back(self, task: Any) -> None:
        release = self._hold(task, f"{task.name} {self.pool}")
        duplicate = task.delay(f"{task.name} {self.pool}")
        self.worker.wait_for_line(f"lock conflict .* task={task.name} ")
        release()
        duplicate.get(timeout=PATIENCE)
        self._acquired[task.name] += 1

    def wait_in_worker(self) -> None:
        release = self._hold(self.tasks.wait, f"wait {self.pool}")
        waiting = self.tasks.wait.delay(f"wait {self.pool}")
        eventually(lambda: scrape(self.port)["waiting", "wait", ""] == 1)
        release()
        waiting.get(timeout=PATIENCE)
        self._acquired["wait"] += 1

    def lose(self) -> None:
        self.tasks.robbed.delay(self.pool).get(propagate=False, timeout=PATIENCE)

    def die(self) -> None:
        self.tasks.killed.delay(self.pool)
        self.project.wait_for_note("dying")
        eventually(lambda: scrape(self.port)["held", "killed", ""] == 0)

    def expected(self) -> Metrics:
        known: Metrics = {}
        for task, count in self._acquired.items():
            known["acquired_total", task, ""] = known["released_total", task, ""] = count
        known["acquired_total", "robbed", ""] = known["lost_total", "robbed", ""] = 1
        if self.pool == "prefork":
            known["acquired_total", "killed", ""] = 1
        for task, count in {"skip": 3, "complete": 2, "raise": 1}.items():
            known["conflicts_total", task, task] = count
        for task in ("reschedule", "coalesce"):
            count = conflict_lines(self.worker, task)
            known["conflicts_total", task, task] = count
            known["rescheduled_total", task, "conflict"] = count
        known["unavailable_total", "raise", "raise"] = 1
        return known


def test_each_replica_of_beat_counts_the_ticks_it_has_processed(new_project: NewProject) -> None:
    project = new_project("measured")
    ports = [free_port(), free_port()]
    beats = [
        start_beats(project, 1, env={"BEAT_METRICS_PORT": str(port)})[0] for port in ports
    ]  # fmt: skip

    def published(port: int) -> float:
        return scrape(port)["ticks_total", "idle", "published"]

    def elsewhere() -> float:
        return sum(scrape(port)["ticks_total", "idle", "elsewhere"] for port in ports)

    def is_counted(beat: Worker, port: int) -> bool:
        return published(port) == len(beat.lines("tick published entry=often"))

    for port in ports:
        eventually(partial(is_served, port))
    eventually(lambda: elsewhere() >= 3 and sum(map(published, ports)) >= 3)
    for beat, port in zip(beats, ports, strict=True):
        # Between a line and its count the replica may be looked at.
        eventually(partial(is_counted, beat, port))
        metrics = scrape(port)
        assert metrics["ticks_total", "idle", "missed"] == 0
        assert 0 <= metrics["beat_age_seconds", "", ""] < PATIENCE
