"""A real Flower shows duplicates, and counts them under the name of their task."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.flower import started_flower


def read(port: int, path: str) -> str:
    """Return what Flower answers; '' while it does not listen yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            return ""
        raise


def counted(port: int) -> dict[tuple[str, str], float]:
    """Return Flower's counts of events, by task and type."""
    return {
        (sample.labels["task"], sample.labels["type"]): sample.value
        for family in text_string_to_metric_families(read(port, "metrics"))
        for sample in family.samples
        if sample.name == "flower_events_total"
    }


def tasks(port: int) -> dict[str, Any]:
    """Return the tasks that Flower shows, by id."""
    return dict(json.loads(read(port, "api/tasks") or "{}"))


@pytest.mark.long
def test_flower_shows_duplicates_and_counts_them_by_task(new_project: NewProject) -> None:
    project = new_project("measured")
    skip: Any = project.tasks.skip
    with started_flower(project) as port:
        project.start_worker(pool="threads", concurrency=3, args=("-E",))
        holder = skip.delay("watched", "watched")
        project.wait_for_note("begin", key="watched")
        duplicates = [skip.delay("watched") for _ in range(2)]
        for duplicate in duplicates:
            duplicate.get(propagate=False, timeout=PATIENCE)
        project.open("watched")
        holder.get(timeout=PATIENCE)
        eventually(lambda: counted(port).get(("skip", "task-succeeded")) == 1)
        assert counted(port)["skip", "task-deduplicated"] == 2
        assert {name for name, kind in counted(port) if kind.startswith("task-")} == {"skip"}
        shown = tasks(port)
        for duplicate in duplicates:
            assert shown[duplicate.id]["name"] == "skip"
            assert shown[duplicate.id]["state"] == "DEDUPLICATED"
        assert shown[holder.id]["state"] == "SUCCESS"
