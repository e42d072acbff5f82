"""Celery's own tasks: they are no singletons, also if the app's task class is one."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.result import GroupResult

from celery_redlock import SingletonTask
from celery_redlock.operate.tasks import singleton_tasks
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode


class Company(SingletonTask):
    """A base of one's own, with a call around each body."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Flasky(SingletonTask):
    """As Flask's documentation has it."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


@pytest.fixture(params=[SingletonTask, Company, Flasky])
def singletons(app: Celery, node: OneNode, request: pytest.FixtureRequest) -> Celery:
    """The app, all of whose tasks are singletons, and no node of which answers."""
    app.task_cls = request.param
    app.conf.update(redlock_on_unavailable="raise", redlock_lifetime="until_executed")
    node.is_up = False
    app.finalize()
    return app


def test_celerys_own_tasks_run_without_a_lock(singletons: Celery) -> None:
    accumulate: Any = singletons.tasks["celery.accumulate"]
    accumulate.delay(1)
    deliver(accumulate, args=[1, 2], kwargs={"index": 1})
    assert accumulate.AsyncResult("task-1").result == 2
    assert accumulate.apply((3,)).get() == (3,)
    assert accumulate(4) == (4,)


def test_a_chord_that_celery_unlocks_by_a_task_ends(
    singletons: Celery, published: list[dict[str, Any]]
) -> None:
    @singletons.task(name="body", lock_on_unavailable="reschedule")
    def body(numbers: list[int]) -> None: ...

    unlock = singletons.tasks["celery.chord_unlock"]
    GroupResult("group-1", [singletons.AsyncResult("part-1")], app=singletons).save()

    def look() -> None:
        parts = [[["part-1", None], None]]
        deliver(unlock, args=["group-1", body.s()], kwargs={"result": parts})

    look()
    assert [one["task"] for one in published] == ["celery.chord_unlock"]
    assert not [name for name in published[0] if name.startswith("redlock_")]
    singletons.backend.mark_as_done("part-1", 1)
    look()
    assert [one["task"] for one in published] == ["celery.chord_unlock", "body"]


def test_options_of_all_tasks_do_not_concern_celerys_own(app: Celery) -> None:
    app.task_cls = SingletonTask  # type: ignore[assignment]
    app.conf.task_annotations = {"*": {"lock_key": ["tenant"]}}

    @app.task
    def sync(tenant: int) -> None: ...

    app.finalize()
    assert list(singleton_tasks(app)) == [sync.name]
    assert app.tasks["celery.accumulate"](4) == (4,)


def test_a_users_task_named_as_celerys_is_a_singleton(app: Celery, node: OneNode) -> None:
    held: list[str | None] = []

    @app.task(base=SingletonTask, name="celery.nightly", lock_key=[])
    def nightly() -> None:
        held.append(node.owner_of("celery.nightly"))

    deliver(nightly)
    assert held != [None]
    assert "celery.nightly" in singleton_tasks(app)
