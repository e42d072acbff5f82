"""Four processes change five rows, and each copy is up to date in the end.

`tests/chaos` has the long version.
"""

from __future__ import annotations

import time

import pytest

from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.support.judges.coalesce_storm import coalesce_storm
from tests.support.judges.figures import Figures
from tests.support.processes.project import Project

WITHIN_S = 90.0
LIFETIMES = [
    pytest.param(Lifetime.WHILE_EXECUTING, marks=pytest.mark.long),
    Lifetime.UNTIL_AND_WHILE_EXECUTING,
]
ROWS, UPDATES = 5, 300


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("coalesce_storm")
    project.start_workers(2, concurrency=6)
    return project


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_each_copy_is_up_to_date_in_the_end(
    project: Project, figures: Figures, lifetime: Lifetime
) -> None:
    began = time.monotonic()
    task = project.tasks.early[lifetime]
    said = coalesce_storm(project, task, rows=ROWS, updates=UPDATES, within=WITHIN_S)
    figures.add(f"{lifetime.value}: {said}", time.monotonic() - began)
