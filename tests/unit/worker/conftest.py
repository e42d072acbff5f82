"""The keeper of a worker, as far as the handlers of signals tell it something."""

from __future__ import annotations

import os

import pytest

from celery_redlock.worker import signal_handlers


class Outcomes:
    """A keeper that notes the outcomes of tasks."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bool]] = []

    def record_task_outcome(self, task_id: str, *, will_be_redelivered: bool) -> None:
        self.heard.append((task_id, will_be_redelivered))


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What the keeper of this process, a main process, was told: tasks, and if they come again."""
    keeper = Outcomes()
    monkeypatch.setitem(signal_handlers.keepers, os.getpid(), (None, keeper))
    return keeper.heard
