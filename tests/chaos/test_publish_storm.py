"""Eight processes publish the same hundred tasks, ten thousand times."""

from __future__ import annotations

import os
import time

import pytest

from tests.integration.conftest import NewNodes, NewProject
from tests.support.figures import Figures
from tests.support.publish_storm import publish_storm

pytestmark = pytest.mark.chaos
SECONDS = float(os.environ.get("REDLOCK_CHAOS_SECONDS", "600"))
SHARE = 1 if SECONDS >= 200 else 10
PATIENCE_S = 600.0


def test_each_publish_returns_a_task_that_runs_and_no_two_runs_overlap(
    new_project: NewProject, new_nodes: NewNodes, figures: Figures
) -> None:
    project = new_project("publish_storm", nodes=new_nodes(5))
    project.start_workers(2, concurrency=2)
    began = time.monotonic()
    said = publish_storm(
        project, publishes=10_000 // SHARE, keys=100 // SHARE, processes=8, within=PATIENCE_S
    )
    figures.add(said, time.monotonic() - began)
