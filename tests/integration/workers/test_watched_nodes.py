"""A worker looks at its nodes, tasks or not, and says once what has changed."""

from __future__ import annotations

import pytest

from tests.integration.conftest import NewNodes, NewProject


@pytest.mark.long
def test_an_idle_worker_tells_of_nodes_that_go_and_come(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(3)
    project = new_project("watching", nodes=nodes)
    worker = project.start_worker(concurrency=2)
    names = [f"127.0.0.1:{node.port}" for node in nodes]
    nodes[1].kill()
    down = project.wait_for_note("node_down")
    assert (down.more["node"], down.more["by"]) == (names[1], project.app.main)
    assert "refused" in down.more["error"] or "closed" in down.more["error"]
    assert down.pid == worker.pid
    degraded = project.wait_for_note("quorum_degraded")
    assert (degraded.more["votes"], degraded.more["of"], degraded.more["needed"]) == (2, 3, 2)
    nodes[2].kill()
    worker.wait_for_line("quorum lost, no lock can be acquired votes=1 of=3")
    nodes[1].start()
    assert project.wait_for_note("node_up").more["node"] == names[1]
    worker.wait_for_line("quorum is back votes=2 of=3")
    assert len(worker.lines(f"node down node={names[1]}")) == 1
    assert len(project.notes("node_down")) == 2
