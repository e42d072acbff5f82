"""Headers called "headers", which tracing libraries nest into each message, hide none of ours."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.config.options import ALLOWED, Lifetime, OnConflict
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.processes.project import Project

NESTED = {"headers": {"traceparent": "00-1"}}
"""As ddtrace sends with distributed tracing, and others after celery#4875."""
EACH = [(lifetime, policy) for lifetime, policies in ALLOWED.items() for policy in sorted(policies)]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("lifetimes")
    project.start_worker(concurrency=2)
    return project


@pytest.mark.parametrize(("lifetime", "policy"), EACH)
def test_a_call_with_nested_headers_runs_and_frees_its_key(
    project: Project, key: str, lifetime: Lifetime, policy: OnConflict
) -> None:
    task: Any = project.tasks.tasks[lifetime, policy]
    result = task.apply_async((key,), headers=NESTED)
    assert result.get(timeout=60) == result.id
    assert [note.task_id for note in project.notes("begin", key=key)] == [result.id]
    if not lifetime.is_throttle:
        eventually(lambda: not project.holds(key), "the key is free")
