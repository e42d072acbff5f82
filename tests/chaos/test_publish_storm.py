"""Eight processes publish the same hundred tasks, ten thousand times."""

from __future__ import annotations

import time

import pytest

from tests.chaos.conftest import PATIENCE_S, SECONDS
from tests.integration.conftest import NewNodes, NewProject
from tests.support.judges.figures import Figures
from tests.support.judges.publish_storm import publish_storm

pytestmark = pytest.mark.chaos
SHARE = 1 if SECONDS >= 200 else 10


def test_each_published_task_runs_and_no_two_runs_overlap(
    new_project: NewProject, new_nodes: NewNodes, figures: Figures
) -> None:
    project = new_project("publish_storm", nodes=new_nodes(5))
    project.start_workers(2, concurrency=2)
    began = time.monotonic()
    said = publish_storm(
        project, publishes=10_000 // SHARE, keys=100 // SHARE, processes=8, within=PATIENCE_S
    )
    figures.add(said, time.monotonic() - began)
