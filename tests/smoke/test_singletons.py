"""Singleton tasks in projects that are tested with pytest-celery."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from pytest_celery import CeleryTestSetup, CeleryTestWorker

from celery_redlock import DuplicateTask
from celery_redlock.testing import Servers
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.nodes import assert_freed


def test_a_task_that_is_sent_often_runs_once(
    celery_setup: CeleryTestSetup, tasks: ModuleType, volume: Path
) -> None:
    assert celery_setup.ready()
    first = tasks.sync.delay("alice")
    eventually(lambda: tokens(volume), "the first runs")
    for _ in range(3):
        duplicate = tasks.sync.delay("alice")
        with pytest.raises(DuplicateTask) as refusal:
            duplicate.get(timeout=PATIENCE)
        assert duplicate.state == "REVOKED"
        assert refusal.value.holder == first.id
    open_gate(volume)
    assert [first.get(timeout=PATIENCE)] == tokens(volume)


@pytest.mark.usefixtures("celery_setup")
def test_tokens_grow_also_over_a_restart_of_the_worker(
    celery_worker: CeleryTestWorker, tasks: ModuleType, volume: Path
) -> None:
    open_gate(volume)
    before = [tasks.sync.delay("alice").get(timeout=PATIENCE) for _ in range(2)]
    celery_worker.restart()
    after = [tasks.sync.delay("alice").get(timeout=PATIENCE) for _ in range(2)]
    assert before + after == tokens(volume) == sorted(set(tokens(volume)))


@pytest.mark.usefixtures("celery_setup")
def test_after_a_worker_is_killed_its_task_runs_again(
    celery_worker: CeleryTestWorker, tasks: ModuleType, volume: Path, five: Servers
) -> None:
    """Its lock expires first."""
    lost = tasks.sync_briefly.delay("alice")
    eventually(lambda: tokens(volume), "it runs")
    celery_worker.kill()
    assert celery_worker.container.status == "exited"
    assert_freed(five, f"{tasks.sync_briefly.name}:alice")
    open_gate(volume)
    celery_worker.restart()
    token = tasks.sync_briefly.delay("alice").get(timeout=PATIENCE)
    killed, again = tokens(volume)
    assert killed < again == token
    assert lost.state == "PENDING"


def tokens(volume: Path) -> list[int]:
    """Return the tokens of the runs that have begun, in that order."""
    file = volume / "tokens"
    return [int(token) for token in file.read_text().split()] if file.exists() else []


def open_gate(volume: Path) -> None:
    """Let the tasks end."""
    (volume / "gate").touch()
