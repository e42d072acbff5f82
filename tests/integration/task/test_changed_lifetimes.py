"""Producers and workers that have different lifetimes for a task, as while a deploy changes it.

Every pair of lifetimes is in tests/unit/execution/test_changed_lifetimes.py; here real workers run
those whose messages meet a throttle.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from celery_redlock import DuplicateTask
from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.processes.project import Project

WORKERS = (Lifetime.UNTIL_EXPIRED, Lifetime.UNTIL_EXECUTED)


def queue_of(project: Project, lifetime: Lifetime) -> str:
    return f"{project.queue}-{lifetime.value}"


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("changed")
    for lifetime in WORKERS:
        worker = project.new_worker(
            pool="solo",
            args=("--queues", queue_of(project, lifetime)),
            env={project.tasks.VARIABLE: lifetime.value},
        )
        worker.start()
    for worker in project.workers:
        worker.wait_until_ready()
    return project


def publish(project: Project, sent: Lifetime, taken: Lifetime, key: str, **more: Any) -> Any:
    """Publish a call by a producer of one lifetime, for the worker of another."""
    task = project.tasks.changing
    task.lock_lifetime, task.lock_ttl = sent.value, project.tasks.ttl_of(sent)
    return task.apply_async((key,), more, queue=queue_of(project, taken))


def remaining(project: Project, key: str) -> dict[str, float]:
    """Return for how long a majority of the nodes holds each lock of a key.

    A node that was slow may take a reservation after the others have taken its successor.
    """
    held: dict[str, list[float]] = {}
    for hold in project.holds(key):
        held.setdefault(hold.key, []).append(hold.remaining)
    rest = len(project.nodes) // 2
    return {name: sorted(left)[-1 - rest] for name, left in held.items() if len(left) > rest}


@pytest.mark.parametrize(
    "sent", [one for one in Lifetime if one is not Lifetime.UNTIL_EXPIRED], ids=str
)
def test_a_throttle_keeps_nothing_of_an_older_lifetime(
    project: Project, key: str, sent: Lifetime
) -> None:
    first = publish(project, sent, Lifetime.UNTIL_EXPIRED, key)
    assert first.get(timeout=60) == 0
    [name] = remaining(project, key)
    assert remaining(project, key)[name] <= project.tasks.PERIOD
    # Skipped for the period of the run, and not for its slot, which a second one would find again.
    for _ in range(2):
        later = publish(project, sent, Lifetime.UNTIL_EXPIRED, key)
        if sent in (Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_AND_WHILE_EXECUTING):
            assert later.id != first.id
            eventually(lambda result=later: result.state == states.REVOKED)  # type: ignore[misc]
            assert isinstance(later.result, DuplicateTask)
            eventually(lambda: list(remaining(project, key)) == [name])
        else:
            assert later.id == first.id
    assert project.tasks.changing.drop(key)
    assert publish(project, sent, Lifetime.UNTIL_EXPIRED, key).get(timeout=60) == 0


def test_a_retry_of_a_locked_run_leaves_a_throttle_a_period(project: Project, key: str) -> None:
    first, then = Lifetime.UNTIL_EXECUTED, Lifetime.UNTIL_EXPIRED
    result = publish(project, first, first, key, retry_in=queue_of(project, then))
    assert result.get(timeout=60) == 1
    eventually(lambda: len(remaining(project, key)) <= 1)
    assert all(left <= project.tasks.PERIOD for left in remaining(project, key).values())


def test_a_retry_of_a_throttled_run_is_not_held_up_by_its_period(
    project: Project, key: str
) -> None:
    first, then = Lifetime.UNTIL_EXPIRED, Lifetime.UNTIL_EXECUTED
    result = publish(project, first, first, key, retry_in=queue_of(project, then))
    assert result.get(timeout=60) == 1
    eventually(lambda: not remaining(project, key))
    assert publish(project, then, then, key).get(timeout=60) == 0
