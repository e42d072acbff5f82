"""The lifetimes that reserve, and a task that is reserved until it has run."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.config.options import Lifetime, OnConflict
from tests.support.processes.project import Project

RESERVING = [lifetime for lifetime in Lifetime if lifetime is not Lifetime.WHILE_EXECUTING]


@pytest.fixture
def task(project: Project) -> Any:
    return project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
