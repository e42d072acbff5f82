"""A task with the lock of another package beside ours, as while tasks are moved."""

from __future__ import annotations

from functools import partialmethod
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Retry

from celery_redlock import SingletonTask


class QueueOnce(Task):  # type: ignore[type-arg]
    """As celery-once, with a lock that is always held."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> str:  # type: ignore[override]
        return "discarded"


QueueOnce.__module__ = "celery_once.tasks"


class BothLocks(QueueOnce, SingletonTask):  # type: ignore[misc]
    abstract = True
    lock_lifetime = "until_executed"


@pytest.fixture
def task() -> Any:
    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.redlock_enabled = False

    @app.task(base=BothLocks, name="sync", shared=False, bind=True)
    def sync(self: Any) -> None: ...

    return sync


def queued(task: Any) -> int:
    with task.app.connection_for_read() as connection:
        return int(connection.default_channel.queue_declare("celery").message_count)


@pytest.fixture
def running(task: Any) -> Any:
    task.push_request(id="task-1", called_directly=False, is_eager=False, retries=0)
    yield task
    task.pop_request()


def test_the_lock_of_the_other_package_discards_a_new_call(running: Any) -> None:
    before = queued(running)
    assert running.delay() == "discarded"
    assert running.apply_async(task_id="task-2") == "discarded"
    assert queued(running) == before


def test_a_retry_passes_the_lock_that_its_message_holds(running: Any) -> None:
    before = queued(running)
    with pytest.raises(Retry):
        running.retry(countdown=1)
    assert queued(running) == before + 1


def test_a_requeued_message_passes_the_lock_that_it_holds(running: Any) -> None:
    before = queued(running)
    running.signature_from_request(running.request, countdown=1).apply_async()
    assert queued(running) == before + 1


def test_annotations_leave_a_requeued_message_past_the_lock() -> None:
    class Annotated(QueueOnce, SingletonTask):  # type: ignore[misc]
        name = "annotated"

        def run(self) -> None: ...

    def around(publish: Any) -> Any:
        return partialmethod(publish)

    app = Celery("bank", broker="memory://", set_as_current=False)
    app.conf.update(redlock_enabled=False, task_annotations={"*": {"@apply_async": around}})
    task: Any = app.register_task(Annotated())
    before = queued(task)
    task.push_request(id="task-1", called_directly=False, is_eager=False, retries=0)
    task.apply_async(task_id="task-1")
    assert task.apply_async(task_id="task-2") == "discarded"
    task.pop_request()
    assert queued(task) == before + 1


def test_outside_of_an_execution_every_call_meets_the_lock(task: Any) -> None:
    assert task.apply_async(task_id="task-1") == "discarded"
    assert task.apply_async() == "discarded"
