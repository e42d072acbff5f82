"""Singleton tasks that run at once, in the caller's process: `apply()` and `task_always_eager`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
from celery import chain, chord, group

from celery_redlock import (
    Lease,
    Redlock,
    SingletonTask,
    current_lease,
)
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.processes.project import Project

Hold = Callable[[Any, str], AbstractContextManager[Lease]]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("locked", task_always_eager=True)


@pytest.fixture
def hold(project: Project) -> Iterator[Hold]:
    """Hold the lock of a task and key, as another task whose id is "holder"."""
    redlock = Redlock(project.nodes.urls, node_timeout=2.0, restart_guard=False)

    @contextmanager
    def lock(task: Any, key: str) -> Iterator[Lease]:
        with redlock.lock(f"{task.name}:{key}", label="holder") as lease:
            yield lease

    yield lock
    redlock.close()


# --- it is locked ---------------------------------------------------------------------------------


def test_an_eager_task_has_its_token_in_every_way(project: Project, key: str) -> None:
    result = project.tasks.telling.delay(key)
    assert result.state == "SUCCESS"
    assert len(set(result.get())) == 1
    assert isinstance(result.get()[0], int)
    assert current_lease() is None
    assert project.tasks.telling.fencing_token is None


def test_apply_locks_without_the_setting(new_project: NewProject) -> None:
    project = new_project("locked")
    assert isinstance(project.tasks.skipping.apply(("key",)).get(), int)


def test_the_lock_is_held_during_the_body_and_free_after_it(project: Project, key: str) -> None:
    task_id = str(uuid.uuid4())
    thread = threading.Thread(
        target=project.tasks.skipping.apply_async, args=((key, key),), kwargs={"task_id": task_id}
    )
    thread.start()
    project.run_of(task_id)
    assert project.votes(task_id) >= 2
    duplicate = project.tasks.skipping.delay(key)
    project.open(key)
    thread.join()
    assert duplicate.state == "REVOKED"
    assert duplicate.result.holder == task_id
    assert project.holds(key) == []


def test_a_canvas_of_one_key_never_meets_itself(project: Project, key: str) -> None:
    step = project.tasks.skipping.si(key)
    assert isinstance(chain(step, step, step).delay().get(), int)
    assert len(group(step, step).delay().get()) == 2
    assert isinstance(chord([step, step], step).delay().get(), int)
    assert project.tasks.skipping.apply_async((key,), link=step).state == "SUCCESS"


def test_a_failed_task_has_let_go(project: Project, key: str) -> None:
    for _ in range(2):
        assert project.tasks.failing.delay(key).state == "FAILURE"
    assert project.holds(key) == []


def test_a_retry_never_meets_its_own_earlier_run(project: Project, key: str) -> None:
    result = project.tasks.retrying.delay(key)
    assert result.state == "SUCCESS"
    assert isinstance(result.get()[0], int)
    assert len(project.notes("begin", key=key)) == 4


@pytest.mark.parametrize("task", ["counting_down", "counting_down_on_a_base"])
def test_a_recursive_call_is_a_plain_one_within_the_same_run(project: Project, task: str) -> None:
    tokens = getattr(project.tasks, task).delay(4).get()
    assert len(tokens) == 5
    assert isinstance(tokens[0], int)
    assert tokens[1:] == [None] * 4, "their keys are others"


@pytest.mark.parametrize("when", ["mixin", "later"])
def test_a_task_class_that_skips_our_call_does_not_run_unlocked(
    project: Project, when: str
) -> None:
    class InContext:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return cast(Any, self).run(*args, **kwargs)

    if when == "mixin":

        class Base(InContext, SingletonTask):
            abstract = True
    else:

        class Base(SingletonTask):  # type: ignore[no-redef]
            abstract = True

        setattr(Base, "__call__", InContext.__call__)  # noqa: B010

    @project.app.task(base=Base, bind=True, name=f"{__name__}.{when}")
    def task(self: SingletonTask) -> int | None:
        return self.fencing_token

    assert isinstance(task.delay().get(), int)
    assert task() is None


def test_min_hold_keeps_the_lock_after_the_end(project: Project, key: str) -> None:
    result = project.tasks.lingering.delay(key)
    result.get()
    assert project.tasks.lingering.delay(key).result.holder == result.id
    eventually(lambda: not project.holds(key))
    assert project.tasks.lingering.delay(key).state == "SUCCESS"


# --- conflicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["waiting", "rescheduling_long"])
def test_wait_and_reschedule_run_when_the_lock_is_free(
    project: Project, key: str, hold: Hold, task: str
) -> None:
    results = []
    thread = threading.Thread(
        target=lambda: results.append(getattr(project.tasks, task).delay(key))
    )
    with hold(getattr(project.tasks, task), key):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert project.notes("begin", key=key) == []
    thread.join()
    [result] = results
    assert result.state == "SUCCESS"


def test_an_eager_task_called_by_itself_is_skipped(project: Project, key: str) -> None:
    # It calls itself by delay() from its own body, which runs at once, within the lock.
    outer, inner = project.tasks.nesting.delay(key).get()
    assert isinstance(outer, int)
    assert inner == "REVOKED"
