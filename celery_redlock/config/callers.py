"""Tasks whose bodies would run outside of their executions, and so without the lock: refused.

An async function only makes a coroutine, and who awaits that does so after the execution; so does
who iterates over what a generator function makes. Messages that a task class collects into batches
are not executed one by one at all.
"""

from __future__ import annotations

import inspect
from typing import Any

from celery import Task

from celery_redlock.redlock.errors import ConfigurationError

_DEFAULT = Task.Strategy
_OF_CELERY = frozenset({"celery", "celery_redlock"})
_AWAIT_INSIDE = "write it as a plain function that awaits inside, with asyncio.run(…)"
_ITERATE_INSIDE = "write it as a plain function that returns a list"

_OUTSIDE = (
    ("an async", inspect.iscoroutinefunction, _AWAIT_INSIDE),
    ("a generator", inspect.isgeneratorfunction, _ITERATE_INSIDE),
    ("an async generator", inspect.isasyncgenfunction, _ITERATE_INSIDE),
)


def refuse_unlocked(name: str, task: type[Any], body: object) -> None:
    """Refuse a task whose body would run without its lock.

    Args:
        name: Name of the task.
        task: Class of the task.
        body: Body of the task.

    Raises:
        ConfigurationError: The message names the task, the reason and the remedy.
    """
    for kind, is_one, remedy in _OUTSIDE:
        if is_one(body) and not _has_own_call(task):
            raise ConfigurationError(
                f"task {name!r}: its body is {kind} function, which would run after the lock is "
                f"released; {remedy}"
            )
    for base in task.__mro__:
        if vars(base).get("Strategy", _DEFAULT) != _DEFAULT:
            raise ConfigurationError(
                f"task {name!r}: its class {base.__name__} has a Strategy of its own, which would "
                "run the body without the lock, for several messages at once; make it a plain task "
                "and lock inside its body, with Redlock(…).lock(…)"
            )


def refuse_awaitable(name: str, result: object) -> None:
    """Refuse the result of a body if it is to be awaited, after the lock is released.

    Raises:
        ConfigurationError: The message names the task, the type of the result and the remedy.
    """
    if result is None or not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise ConfigurationError(
        f"task {name!r}: its body returned a {type(result).__name__}, which would be awaited after "
        f"the lock is released; {_AWAIT_INSIDE}"
    )


def _has_own_call(task: type[Any]) -> bool:
    """Return whether a class of the user's calls the body, and may await it."""
    return any(
        "__call__" in vars(base) and base.__module__.partition(".")[0] not in _OF_CELERY
        for base in task.__mro__
    )
