"""A worker looks at its nodes, tasks or not, and says once what has changed."""

from __future__ import annotations

import pytest

from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE


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


@pytest.mark.long
def test_guarded_and_full_nodes_are_one_line_a_worker(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(3)
    with nodes[0].client() as client:
        client.config_set("maxmemory", "1")
    project = new_project(
        "watching", nodes=nodes, redlock_restart_guard=True, redlock_max_ttl=4.0,
        redlock_max_clock_skew=0.5, redlock_ttl=4.0,
    )  # fmt: skip
    worker = project.start_worker(concurrency=3)
    results = [project.tasks.pid.delay(number) for number in range(12)]
    pids = {result.get(timeout=PATIENCE) for result in results}
    assert pids <= set(worker.children())
    full = f"127.0.0.1:{nodes[0].port}"
    worker.wait_for_line(f"node refuses writes node={full} error=OOM")
    # Perhaps at the start already.
    is_guarded = f"node guarded node=127.0.0.1:{nodes[1].port}"
    before = len(worker.lines(is_guarded))
    nodes[1].restart()
    worker.wait_for_line(is_guarded, count=before + 1)
    for number in range(12, 24):
        project.tasks.pid.delay(number)
    with nodes[0].client() as client:
        client.config_set("maxmemory", "0")
    project.wait_for_note("node_up", node=full)
    assert len(worker.lines("node refuses writes")) == 1
    assert len(worker.lines(is_guarded)) == before + 1


@pytest.mark.long
def test_a_node_that_turns_replica_costs_no_task(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(3)
    project = new_project("watching", nodes=nodes)
    worker = project.start_worker(concurrency=2)
    results = [project.tasks.pid.delay(number) for number in range(4)]
    with nodes[0].client() as client:
        client.replicaof("127.0.0.1", nodes[1].port)
    results += [project.tasks.pid.delay(number) for number in range(4, 20)]
    assert {result.get(timeout=PATIENCE) for result in results} <= set(worker.children())
    name = f"127.0.0.1:{nodes[0].port}"
    # Loud, since only an operator can mend it.
    worker.wait_for_line(f"ERROR/MainProcess] node down node={name} error=node {name} is a slave")
