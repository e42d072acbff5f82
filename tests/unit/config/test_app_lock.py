"""The lock of an app is made once, from its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock.config.app_lock import is_enabled, new_redlock, redlock_of
from celery_redlock.config.settings import settings_from
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.processes.project import celery_to_itself

NODES = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]


@pytest.fixture
def bare() -> Iterator[Celery]:
    """An app whose lock is not made yet."""
    with celery_to_itself(), Celery("bare", broker="memory://", set_as_current=False) as app:
        app.conf.redlock_nodes = NODES
        yield app


def test_an_app_has_one_lock_and_another_app_has_its_own(bare: Celery, app: Celery) -> None:
    redlock = redlock_of(bare)
    assert redlock_of(bare) is redlock
    assert redlock_of(app) is not redlock
    redlock.close()


def test_a_lock_has_the_settings_of_its_app(bare: Celery) -> None:
    bare.conf.redlock_max_ttl = 77.0
    redlock = new_redlock(settings_from(bare.conf))
    assert redlock.max_ttl == 77.0
    assert [node.name for node in redlock.nodes] == ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]
    redlock.close()


def test_after_refused_settings_corrected_ones_make_the_lock(bare: Celery) -> None:
    bare.conf.redlock_nodes = NODES[:2]
    with pytest.raises(ConfigurationError, match="got 2"):
        redlock_of(bare)
    bare.conf.redlock_nodes = NODES
    redlock_of(bare).close()


@pytest.mark.parametrize(("said", "enabled"), [({}, True), ({"redlock_enabled": False}, False)])
def test_tasks_are_locked_unless_that_is_switched_off(
    bare: Celery, said: dict[str, bool], enabled: bool
) -> None:
    bare.conf.update(said)
    assert is_enabled(bare) is enabled
    bare.conf.redlock_enabled = not enabled
    assert is_enabled(bare) is not enabled, "as the configuration stands at this moment"


@pytest.mark.parametrize(("said", "enabled"), [({}, True), ({"redlock_enabled": False}, False)])
def test_once_there_is_a_lock_the_switch_is_found_at_once_and_still_works(
    bare: Celery, said: dict[str, bool], enabled: bool
) -> None:
    bare.conf.update(said)
    redlock_of(bare).close()
    found_first: Any = bare.conf.changes
    assert found_first["redlock_enabled"] is enabled
    bare.conf.redlock_enabled = not enabled
    redlock_of(bare)
    assert is_enabled(bare) is not enabled
