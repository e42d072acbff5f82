"""Workers that tell what they run, in place of Celery's remote control."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from celery import Celery


class Told:
    """Answers of workers to `inspect active`, by the worker's name, in their order.

    Attributes:
        asked: How often they were asked.
    """

    def __init__(
        self, app: Celery, patch: pytest.MonkeyPatch, answers: Mapping[str, object] | None = None
    ) -> None:
        self.answers = dict(answers or {})
        self.asked = 0
        self._callback: Callable[[Any], Any] = id
        patch.setattr(app.control, "inspect", self._inspect)

    def _inspect(
        self, *, callback: Callable[[Any], Any], connection: object, timeout: float
    ) -> Told:
        assert connection
        assert timeout == 1.0
        self._callback = callback
        return self

    def active(self, *, safe: bool) -> Mapping[str, object] | None:
        """Answer, with the arguments as the publisher lets them be shown."""
        assert safe
        self.asked += 1
        for worker, answer in self.answers.items():
            self._callback({worker: answer})
        return self.answers or None


def active(task_id: str, **more: object) -> dict[str, object]:
    """Return a running task as a worker tells of it."""
    request = {"args": "(42,)", "kwargs": "{}", "time_start": 1.0, "worker_pid": 7}
    return {"id": task_id, **request, **more}
