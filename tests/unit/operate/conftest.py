"""Simulated nodes that questions lead to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fakes.operated import Operated
from tests.support.processes.project import celery_to_itself


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Operated:
    return Operated(3, monkeypatch)


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests() -> Iterator[None]:
    """An app has its own tasks only: a shared one of another test is in every app after it."""
    with celery_to_itself():
        yield
