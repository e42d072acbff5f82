"""Tasks that replace themselves: the replacement is no copy of the message that it replaces."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, chain, group
from celery.local import maybe_evaluate
from celery.result import AsyncResult

from celery_redlock import SingletonTask
from celery_redlock.config.options import Lifetime
from tests.support.fakes.one_node import OneNode
from tests.support.fakes.one_worker import OneWorker


@pytest.mark.parametrize("lifetime", Lifetime)
@pytest.mark.parametrize("protocol", [1, 2])
def test_a_replacement_runs_in_either_protocol(
    app: Celery, node: OneNode, lifetime: Lifetime, protocol: int
) -> None:
    @app.task(
        bind=True, base=SingletonTask, lock_key=[], lock_lifetime=lifetime.value, acks_late=True
    )
    def count_down(self: Any, left: int) -> str:
        if left:
            raise self.replace(self.si(left - 1))
        return "done"

    app.conf.task_protocol = protocol
    vars(app.amqp).pop("create_task_message", None)
    worker = OneWorker(app)
    result: AsyncResult[Any] = maybe_evaluate(count_down).delay(2)
    worker.work()
    assert result.result == "done"
    assert node.held.keys() == set() or lifetime.is_throttle


@pytest.mark.parametrize("countdown", [None, 1])
def test_a_replacing_chain_runs_for_each_message_of_an_id(
    app: Celery, countdown: int | None
) -> None:
    runs: list[tuple[int, Any]] = []

    @app.task(bind=True, base=SingletonTask, lock_key=[], acks_late=True)
    def body(self: Any, step: int = 0) -> None:
        runs.append((step, self.request.get("redlock_publication")))
        if not step:
            raise self.replace(chain(self.si(1), self.si(2).set(countdown=countdown)))

    worker = OneWorker(app)
    for _ in range(2):
        maybe_evaluate(body).apply_async(task_id="task-1")
        worker.work()
    assert [step for step, _ in runs] == [0, 1, 2] * 2
    assert runs[2][1] == runs[0][1] != runs[5][1] == runs[3][1]


def test_a_task_replaces_itself_with_other_canvases(app: Celery) -> None:
    runs: list[int] = []

    @app.task(bind=True, base=SingletonTask, lock_key=[], acks_late=True)
    def body(self: Any, step: int = 0) -> None:
        runs.append(step)
        match step:
            case 0:
                raise self.replace(group(self.si(1), self.si(2)))
            case 1:
                raise self.replace(chain(self.si(3), group(self.si(4))))

    worker = OneWorker(app)
    maybe_evaluate(body).delay()
    worker.work()
    assert {0, 1, 2, 3, 4} == set(runs)
