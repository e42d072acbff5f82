"""A call or a body that is replaced once the task is defined: the lock stays around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task
from celery.local import maybe_evaluate

from celery_redlock import LockHeld, SingletonTask, singleton_task
from tests.support.fakes.forged import HOLDER, deliver
from tests.support.fakes.one_node import OneNode


class Company(Task):  # type: ignore[type-arg]
    """An app's own task class, which has a call of its own."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class Unknowing:
    """A mixin that runs the body by itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)  # type: ignore[attr-defined]


class Mixed(Unknowing, SingletonTask):
    abstract = True


def run_it(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.run(*args, **kwargs)


def around(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper


def instead(call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    return wrapper


@pytest.fixture(params=[SingletonTask, Company, Mixed])
def define(
    app: Celery, node: OneNode, request: pytest.FixtureRequest
) -> Callable[[], tuple[Any, list[str | None]]]:
    """Define the task `t`; return it, and a list of who held its lock at each run."""
    if request.param is Company:
        app.task_cls = Company  # type: ignore[assignment]
    base = Mixed if request.param is Mixed else SingletonTask

    def make() -> tuple[Any, list[str | None]]:
        held: list[str | None] = []

        @app.task(bind=True, base=base, name="t", lock_key=[])
        def body(self: Any, a: int, *, fencing_token: int | None) -> int:
            assert bool(fencing_token) == bool(self.lease) == bool(node.owner_of("t"))
            held.append(node.owner_of("t"))
            return a

        return maybe_evaluate(body), held

    return make


def assert_locked(task: Any, held: list[str | None], node: OneNode) -> None:
    deliver(task, args=[1])
    assert task.AsyncResult("task-1").result == 1
    assert held
    assert None not in held
    node.held["t"] = (HOLDER, node.clock.now() + 60)
    deliver(task, args=[1])
    assert len(held) == 1
    node.held.clear()
    assert task(2) == 2


@pytest.mark.parametrize(
    "annotation",
    [{"__call__": run_it}, {"@__call__": around}, {"@__call__": instead}, {"@run": around}],
)
def test_a_call_that_annotations_replace_is_locked(
    app: Celery, node: OneNode, define: Any, annotation: dict[str, Any]
) -> None:
    app.conf.task_annotations = {"*": annotation}
    task, held = define()
    assert_locked(task, held, node)


@pytest.mark.parametrize("replace", [run_it, around, instead])
def test_a_call_that_is_assigned_to_the_class_is_locked(
    node: OneNode, define: Any, replace: Any
) -> None:
    task, held = define()
    cls = type(task)
    cls.__call__ = replace if replace is run_it else replace(cls.__call__)
    assert_locked(task, held, node)


def test_a_body_that_is_assigned_to_the_task_is_locked(node: OneNode, define: Any) -> None:
    task, held = define()
    task.run = around(task.run)
    assert_locked(task, held, node)


def test_a_tracing_wrapper_of_the_call_is_told_of_a_lock_that_is_held(
    node: OneNode, app: Celery
) -> None:
    told: list[object] = []

    @singleton_task(app=app, name="t", lock_key=[], lock_on_conflict="raise")
    def body() -> None: ...

    cls: Any = type(maybe_evaluate(body))
    call = cls.__call__

    @wraps(call)
    def traced(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            told.append(error)
            raise

    cls.__call__ = traced
    node.held["t"] = (HOLDER, node.clock.now() + 60)
    deliver(body)
    assert [type(error) for error in told] == [LockHeld]
