"""Singleton tasks as errbacks: Celery publishes those that take a task's id, token or not."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_redlock import SingletonTask
from tests.support.fakes.forged import deliver


class ByHand(SingletonTask):
    """A task class, which has no header in Celery."""

    name = "by_hand"

    def run(self, task_id: str, more: Any = None, *, fencing_token: int) -> None: ...


@pytest.mark.parametrize("kind", ["function", "bound", "class", "without"])
def test_an_errback_is_published_with_the_failed_tasks_id(
    app: Celery, published: list[dict[str, Any]], kind: str
) -> None:
    def plain(task_id: str, *, fencing_token: int) -> None: ...

    def bound(self: Any, task_id: str, more: Any = None, *, fencing_token: int) -> None: ...

    def without(task_id: str) -> None: ...

    errback: Any = {
        "function": lambda: app.task(base=SingletonTask)(plain),
        "bound": lambda: app.task(base=SingletonTask, bind=True)(bound),
        "class": lambda: app.register_task(ByHand()),  # type: ignore[no-untyped-call]
        "without": lambda: app.task(base=SingletonTask)(without),
    }[kind]()

    @app.task(name="fails")
    def fails() -> None:
        raise ValueError

    deliver(fails, errbacks=[errback.s()])
    assert [(one["task"], one["argsrepr"]) for one in published] == [(errback.name, "('task-1',)")]


def test_an_errback_that_takes_three_arguments_is_called(
    app: Celery, published: list[dict[str, Any]]
) -> None:
    called: list[str] = []

    @app.task(base=SingletonTask)
    def errback(request: Any, exc: Any, traceback: Any, *, fencing_token: int | None) -> None:
        called.append(request.id)

    @app.task(name="fails")
    def fails() -> None:
        raise ValueError

    deliver(fails, errbacks=[errback.s()])
    assert (called, published) == (["task-1"], [])
