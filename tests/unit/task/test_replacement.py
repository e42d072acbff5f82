"""Tasks that replace themselves: the replacement is no copy of the message that it replaces."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
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
