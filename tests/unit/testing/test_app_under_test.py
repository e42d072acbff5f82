"""The app under test, if the project names none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from celery._state import get_current_app

from tests.support.processes.project import celery_to_itself


@pytest.fixture
def made() -> Iterator[Celery]:
    """An app as Celery's own fixtures make it."""
    with celery_to_itself(), Celery("made", set_as_current=False) as app:
        yield app


@pytest.fixture
def celery_app(made: Celery) -> Celery:
    return made


@pytest.fixture
def celery_session_app(made: Celery) -> Celery:
    return made


def test_the_app_of_celerys_fixture_is_under_test(redlock_app: Celery, celery_app: Celery) -> None:
    assert redlock_app is celery_app


def test_the_app_of_celerys_session_is_under_test(
    redlock_app: Celery, celery_session_app: Celery
) -> None:
    assert redlock_app is celery_session_app


def test_the_current_app_is_under_test_else(redlock_app: Celery) -> None:
    assert redlock_app is get_current_app()
