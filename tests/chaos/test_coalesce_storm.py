"""Five thousand changes of twenty rows: few runs keep their copies up to date."""

from __future__ import annotations

import time

import pytest

from celery_redlock.config.options import Lifetime
from tests.chaos.conftest import PATIENCE_S, SECONDS
from tests.integration.conftest import NewProject
from tests.support.judges.coalesce_storm import coalesce_storm
from tests.support.judges.figures import Figures
from tests.support.processes.project import Project

pytestmark = pytest.mark.chaos
UPDATES, ROWS, MOST = (5000, 20, 0.05) if SECONDS >= 200 else (500, 4, 0.3)
LIFETIMES = [Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_AND_WHILE_EXECUTING]
KILL_EVERY_S = 0.5


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("coalesce_storm")
    project.start_workers(2, concurrency=6)
    return project


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_each_copy_is_up_to_date_after_few_runs(
    project: Project, figures: Figures, lifetime: Lifetime
) -> None:
    began = time.monotonic()
    task = project.tasks.early[lifetime]
    said = coalesce_storm(project, task, rows=ROWS, updates=UPDATES, most=MOST, within=PATIENCE_S)
    figures.add(f"{lifetime.value}: {said}", time.monotonic() - began)


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_it_is_so_though_pool_processes_are_killed(
    project: Project, figures: Figures, lifetime: Lifetime
) -> None:
    began = time.monotonic()
    task = project.tasks.late[lifetime]
    said = coalesce_storm(
        project,
        task,
        rows=ROWS,
        updates=UPDATES,
        most=MOST,
        within=PATIENCE_S,
        kill_every=KILL_EVERY_S,
    )
    figures.add(f"{lifetime.value}, killed: {said}", time.monotonic() - began)
