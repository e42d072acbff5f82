"""Four processes publish the same twenty tasks; `tests/chaos` has the long version."""

from __future__ import annotations

import time

import pytest

from tests.integration.conftest import NewNodes, NewProject
from tests.support.judges.figures import Figures
from tests.support.judges.publish_storm import publish_storm


@pytest.mark.long
def test_each_published_task_runs_and_no_two_runs_overlap(
    new_project: NewProject, new_nodes: NewNodes, figures: Figures
) -> None:
    project = new_project("publish_storm", nodes=new_nodes(5))
    project.start_workers(2, concurrency=2)
    began = time.monotonic()
    said = publish_storm(project, publishes=600, keys=20, processes=4, within=60)
    figures.add(said, time.monotonic() - began)
