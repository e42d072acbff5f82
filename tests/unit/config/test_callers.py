"""Callers that would run a body outside of its execution: each is refused, with the remedy."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from celery import Celery, Task

from celery_redlock import ConfigurationError, SingletonTask, singleton_task
from celery_redlock.config.callers import refuse_awaitable
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode


class Batches(Task):  # type: ignore[type-arg]
    """As celery-batches has it, and copies of it in other projects."""

    abstract = True

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any: ...  # type: ignore[override]  # noqa: N802


async def deferred() -> int:
    await asyncio.sleep(0)
    return 1


def refusal(app: Celery, define: Callable[[], object]) -> str:
    def bind() -> None:
        define()
        app.finalize()

    with pytest.raises(ConfigurationError) as caught:
        bind()
    return str(caught.value)


@pytest.mark.parametrize("enabled", [True, False])
def test_an_async_body_is_refused_at_binding(app: Celery, *, enabled: bool) -> None:
    app.conf.redlock_enabled = enabled
    message = refusal(app, lambda: singleton_task(app=app, name="t")(deferred))
    assert "task 't': its body is an async function" in message
    assert "asyncio.run" in message


def rows() -> Iterator[int]:
    yield 1


async def pages() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(("kind", "body"), [("a generator", rows), ("an async generator", pages)])
def test_a_generator_body_is_refused_at_binding(app: Celery, kind: str, body: Any) -> None:
    message = refusal(app, lambda: singleton_task(app=app, name="t")(body))
    assert f"task 't': its body is {kind} function, which would run after" in message
    assert "returns a list" in message


def test_a_class_with_an_async_run_is_refused_at_binding(app: Celery) -> None:
    class Deferred(SingletonTask):
        name = "t"

        async def run(self) -> None: ...

    assert "its body is an async function" in refusal(app, lambda: app.register_task(Deferred()))


@pytest.mark.parametrize("is_apps", [True, False])
def test_an_async_body_that_its_class_awaits_runs_locked(
    app: Celery, node: OneNode, *, is_apps: bool
) -> None:
    held: list[str | None] = []

    class Awaiting(Task):  # type: ignore[type-arg]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return asyncio.run(self.run(*args, **kwargs))

    if is_apps:
        app.task_cls = Awaiting  # type: ignore[assignment]

    @singleton_task(app=app, base=None if is_apps else Awaiting, name="t", lock_key=[])
    async def body() -> int:
        await asyncio.sleep(0)
        held.append(node.owner_of("t"))
        return 1

    deliver(body)
    assert held != [None]
    assert body.AsyncResult("task-1").result == 1


class Awaited(SingletonTask):
    abstract = True

    async def __call__(self) -> None: ...


def plain() -> int:
    return 1


@wraps(deferred)
def undeclared() -> Any:
    return deferred()


@pytest.mark.parametrize(("base", "body"), [(None, undeclared), (Awaited, plain)])
def test_an_awaitable_result_of_a_body_fails_its_task(
    app: Celery, node: OneNode, base: type[Any] | None, body: Callable[[], Any]
) -> None:
    task = singleton_task(app=app, base=base, name="t", lock_key=[])(body)
    deliver(task)
    with pytest.raises(ConfigurationError, match="task 't': its body returned a coroutine"):
        task.AsyncResult("task-1").get()
    with pytest.raises(ConfigurationError, match="its body returned a coroutine"):
        task.apply().get()
    assert node.held == {}


def test_a_refused_coroutine_is_closed_without_a_warning() -> None:
    coroutine = deferred()
    with pytest.raises(ConfigurationError):
        refuse_awaitable("t", coroutine)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED


def test_an_awaitable_that_is_no_coroutine_is_refused_by_its_type() -> None:
    class Pending:
        def __await__(self) -> Any: ...

    with pytest.raises(ConfigurationError, match="task 't': its body returned a Pending"):
        refuse_awaitable("t", Pending())
    refuse_awaitable("t", None)
    refuse_awaitable("t", 1)


@pytest.mark.parametrize("form", ["decorator", "bases", "app"])
def test_a_task_that_runs_in_batches_is_refused_at_binding(app: Celery, form: str) -> None:
    def define() -> object:
        def body(requests: Any) -> None: ...

        if form == "decorator":
            return singleton_task(app=app, base=Batches, name="t")(body)
        if form == "app":
            app.task_cls = Batches  # type: ignore[assignment]
            return singleton_task(app=app, name="t")(body)
        both = type("Both", (Batches, SingletonTask), {"abstract": True})
        return app.task(base=both, name="t")(body)

    message = refusal(app, define)
    assert "task 't': its class Batches" in message
    assert "Redlock(…).lock(…)" in message
