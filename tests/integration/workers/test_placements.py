"""Processes that lock elsewhere are found by each other, and by the doctor; equal ones are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_redlock.testing import Servers
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.commands import run_with
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

LINE = "peer locks elsewhere"
CONF_VARIABLE = "REDLOCK_TEST_CONF"
Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def nodes(new_nodes: NewNodes) -> Servers:
    return new_nodes(5)


@pytest.fixture
def project(new_project: NewProject, nodes: Servers) -> Project:
    return new_project("placed", redlock_nodes=nodes.urls[:3])


def start(project: Project, pool: str = "solo", **conf: Any) -> Worker:
    """Start a worker with settings of its own."""
    env = {CONF_VARIABLE: json.dumps(conf)}
    return project.start_worker(pool=pool, concurrency=1, gossip=True, env=env)


def lines(worker: Worker) -> list[str]:
    """Return what a worker has logged about peers."""
    return [line for line in worker.log.read_text().splitlines() if LINE in line]


def wait_for_line(worker: Worker) -> None:
    eventually(lambda: bool(lines(worker)), f"no line of {worker}")


def findings(app: Celery) -> list[tuple[str, str, str]]:
    """Return what the doctor finds about workers: severity, place and observation."""
    found = run_with(app, "doctor", "--json").json["findings"]
    return [(one["severity"], one["where"], one["what"]) for one in found if one["code"] == "RL210"]


def other_spelling(urls: list[str]) -> list[str]:
    return [url.replace("127.0.0.1", "localhost") for url in reversed(urls)]


@pytest.mark.parametrize(
    ("conf", "differs"),
    [
        ("other node", "redlock_nodes, of 3 here and 3 there 2 are the same"),
        ("more nodes", "redlock_nodes, of {} here and {} there 3 are the same"),
        ("other prefix", "redlock_key_prefix"),
        ("other database", "databases of the nodes"),
    ],
)
def test_workers_that_lock_elsewhere_say_so(
    project: Project, nodes: Servers, conf: str, differs: str
) -> None:
    settings: dict[str, dict[str, Any]] = {
        "other node": {"redlock_nodes": [*nodes.urls[:2], nodes.urls[3]]},
        "more nodes": {"redlock_nodes": nodes.urls},
        "other prefix": {"redlock_key_prefix": "bank"},
        "other database": {"redlock_nodes": [f"{url}/1" for url in nodes.urls[:3]]},
    }
    first = start(project)
    second = start(project, **settings[conf])
    for worker, peer, counts in ((first, second, (3, 5)), (second, first, (5, 3))):
        wait_for_line(worker)
        [line] = lines(worker)
        assert "ERROR" in line
        assert f"peer=worker {peer._node}@" in line
        assert f"differs={differs.format(*counts)} " in line
    [(severity, where, what)] = findings(project.app)
    assert (severity, where.partition("@")[0]) == ("error", second._node)
    assert what.startswith(differs.format(3, 5))


def test_equal_workers_are_silent_however_they_name_the_nodes(
    project: Project, nodes: Servers
) -> None:
    workers = [
        start(project, "prefork"),
        start(project, "gevent", redlock_nodes=other_spelling(nodes.urls[:3])),
    ]
    for number in range(4):
        assert project.tasks.reserved.delay(number).get(timeout=PATIENCE) == number
    # A third one that differs shows that the others have heard of each other by now.
    third = start(project, redlock_key_prefix="bank")
    eventually(lambda: len(lines(third)) == 2, "the third worker has heard of both")
    # Of an introduction rather than an answer, perhaps: then they have yet to hear of the third.
    eventually(lambda: all(map(lines, workers)), "both have heard of the third")
    for worker in workers:
        [line] = lines(worker)
        assert f"peer=worker {third._node}@" in line
    [(_, where, _)] = findings(project.app)
    assert where.startswith(third._node)


def test_a_publisher_that_reserves_elsewhere_is_found_once(
    project: Project, nodes: Servers
) -> None:
    worker = start(project, redlock_nodes=[*nodes.urls[:2], nodes.urls[3]])
    number = 0

    def is_found() -> bool:
        nonlocal number
        number += 1
        assert project.tasks.reserved.delay(number).get(timeout=PATIENCE) == number
        return bool(lines(worker))

    # Messages of the second in which the worker started are not compared.
    eventually(is_found, "the publisher was not found")
    assert project.tasks.reserved.delay(0).get(timeout=PATIENCE) == 0
    assert project.tasks.plain.delay(0).get(timeout=PATIENCE) == 0
    [line] = lines(worker)
    assert "peer=publisher on " in line
