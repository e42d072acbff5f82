"""Nodes that restart one after the other: a quorum votes for every process of a worker."""

from __future__ import annotations

import pytest
from celery.result import AsyncResult

from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE


@pytest.mark.long
def test_a_pool_process_that_was_idle_has_a_quorum_at_once(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(3)
    project = new_project(
        "watching", nodes=nodes, redlock_restart_guard=True, redlock_max_ttl=4.0,
        redlock_max_clock_skew=0.5, redlock_ttl=4.0,
    )  # fmt: skip
    worker = project.start_worker(concurrency=2)
    first: list[AsyncResult[int]] = [project.tasks.pid.delay(number) for number in range(4)]
    assert {result.get(timeout=PATIENCE) for result in first} <= set(worker.children())
    for node in nodes[:2]:
        name = f"127.0.0.1:{node.port}"
        before = len(project.notes("node_up", node=name))
        node.restart()
        project.wait_for_note("node_up", node=name, count=before + 1)
    for number in range(4):
        assert project.tasks.impatient.delay(number).get(timeout=PATIENCE) in worker.children()
