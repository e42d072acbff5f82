"""Reservations whose message is lost, or is run where nothing is locked."""

from __future__ import annotations

from typing import Any

import pytest
from celery import states

from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.conftest import NewProject
from tests.integration.publish.conftest import RESERVING
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project


def task_of(project: Project, lifetime: Lifetime) -> Any:
    return project.tasks.tasks[lifetime, OnConflict.SKIP]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("lifetimes")
    project.start_worker(pool="threads")
    return project


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_workers_that_lock_nothing_give_reservations_back(
    new_project: NewProject, pool: str
) -> None:
    project = new_project("lifetimes", redlock_enabled=False)
    project.start_worker(pool=pool, concurrency=2)
    project.app.conf.redlock_enabled = True  # here, where it is published
    for lifetime in RESERVING:
        if lifetime is Lifetime.UNTIL_EXPIRED:
            continue
        task = task_of(project, lifetime)
        for _ in range(3):
            result = task.delay("key")
            assert result.get(timeout=PATIENCE) == result.id
        # It has expired when it arrives, however fast that is.
        revoked = task.apply_async(("key",), expires=1e-6)
        eventually(lambda revoked=revoked: revoked.state == states.REVOKED)  # type: ignore[misc]
        # A slow node may get the release before the grant, and keep it: a minority holds nobody up.
        eventually(lambda revoked=revoked: project.votes(revoked.id) <= 1)  # type: ignore[misc]
        assert task.delay("key").get(timeout=PATIENCE) != revoked.id
    assert len(project.notes("begin", key="key")) == 3 * 4
