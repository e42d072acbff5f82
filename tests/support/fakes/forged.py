"""Messages as anybody can write them, executed as by a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.local import maybe_evaluate

from celery_redlock import SingletonTask
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.execution.message import Message
from celery_redlock.messages.delivery import Delivery

NewTask = Callable[..., Any]
HOLDER = f"{'0' * 32}:holder@host"
"""Owner of a lease under which another message runs."""
WAITING = f"{'1' * 32}~:waiting@host"
"""Owner of a reservation of another message."""
RESERVED_PERIOD = f"{'1' * 24}decade00~:waiting@host"
"""Owner of a throttle's period that another message has reserved."""
PERIOD = f"{'0' * 24}decade00:holder@host"
"""Owner of a throttle's period in which another message has run."""


def task_maker(app: Celery) -> NewTask:
    """Return a function that makes a task of an app, all of whose calls have its name as key.

    The name is `t` unless given. The body returns "done", and the task's attribute `runs` lists the
    token of each run.
    """

    def new(base: type[Any] = SingletonTask, name: str = "t", **options: Any) -> Any:
        runs: list[int | None] = []

        @app.task(bind=True, base=base, name=name, lock_key=[], **options)
        def body(self: Any) -> str:
            runs.append(self.fencing_token)
            return "done"

        body.runs = runs
        return body

    return new


def deliver(
    task: Any, *, args: Any = (), kwargs: Any = None, embed: Any = None, **headers: Any
) -> Any:
    """Have a worker's tracer execute a message; return how it ended.

    Args:
        task: Its task.
        args: Of the message's body.
        kwargs: Of the message's body.
        embed: The third part of the message's body, which Celery copies into the request, too.
        headers: Of the message.
    """
    request = {
        "id": "task-1", "retries": 0, "delivery_info": {"redelivered": False}, **headers,
        "is_eager": False, **(embed or {}),
    }  # fmt: skip
    task = maybe_evaluate(task)
    tracer = build_tracer(task.name, task, app=task.app)
    return tracer(request["id"], args, kwargs or {}, request)


def context_of(headers: Mapping[str, Any] | None = None, **fields: Any) -> Context:
    """Return the request that Celery makes of a message with these headers."""
    return Context({**(headers or {}), **fields})


def delivery_of(request: Context, task: Any = None) -> Delivery:
    """Return the delivery that a request stands for; of a task `t` unless it is given."""
    any_task: Any = SimpleNamespace(name="t", acks_late=False)
    return Delivery.of(task or any_task, request)


def message_of(task: Any, *, redelivered: bool = False, **request: Any) -> Message:
    """Return a message of a task, as far as its execution has come before it has its lock.

    Args:
        task: Its task, one without parameters.
        redelivered: Whether the broker flags the message as delivered before.
        request: Further attributes of the request; `headers` are those of the message.
    """
    task = maybe_evaluate(task)
    known = {
        "id": "task-1", "args": [], "kwargs": {}, "retries": 0, "is_eager": False,
        "delivery_info": {"redelivered": redelivered},
    }  # fmt: skip
    context = context_of(**{**known, **request})
    task.request_stack.push(context)
    config = task._lock_config()
    redlock = redlock_of(task.app)
    delivery = Delivery.of(task, context)
    return Message(delivery, redlock, config.options, task.name, lambda _: task.run())
