"""Messages that the workers have, as they tell over Celery's remote control."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from celery_redlock.redlock.labels import label_of

from .brokers import MessagesUnknown

ANSWER_WITHIN_S = 3.0
"""Longest wait for the answers of all workers to one question."""
_CONNECT_S = 4.0


@contextmanager
def remote_control(app: Any) -> Iterator[Any]:
    """Yield a connection to the broker on which workers can be asked; None: they can't be.

    Raises:
        Exception: Of any broker's client: it can't be reached.
    """
    with app.connection_for_write(connect_timeout=_CONNECT_S) as connection:
        yield _connected(connection)


def _connected(connection: Any) -> Any:
    if "fanout" not in connection.transport.implements.exchange_type:
        return None
    if connection.transport.driver_type == "redis":  # which has no timeouts otherwise
        for option in ("socket_connect_timeout", "socket_timeout"):
            connection.transport_options.setdefault(option, _CONNECT_S)
    connection.ensure_connection(max_retries=1, interval_start=0)
    return connection


def consumed_queues(app: Any) -> dict[str, set[str]]:
    """Return the queues of each worker that answers, by the worker's name.

    Raises:
        MessagesUnknown: A worker's answer is an error.
    """
    replies = app.control.inspect(timeout=ANSWER_WITHIN_S).active_queues() or {}
    return {
        worker: {str(queue["name"]) for queue in _listed(worker, queues)}
        for worker, queues in replies.items()
    }


def task_ids(app: Any, workers: Collection[str]) -> set[str]:
    """Return the ids of the tasks that these workers have, as owners have them.

    Raises:
        MessagesUnknown: One of them does not answer, or with an error.
    """
    inspect = _inspect(app, workers)
    # In this order, which is that of a request on its way.
    return {
        label_of((entry.get("request") or entry)["id"])
        for ask in (inspect.scheduled, inspect.reserved, inspect.active)
        for entry in _each_answer(workers, ask)
    }


def rate_limited(app: Any, workers: Collection[str]) -> set[str]:
    """Return the names of the tasks that have a rate limit in any of these workers.

    No worker tells which messages wait for it.

    Raises:
        MessagesUnknown: One of them does not answer, or with an error.
    """
    inspect = _inspect(app, workers)
    tasks = _each_answer(workers, lambda: inspect.registered("rate_limit"))
    return {task.split(" [")[0] for task in tasks if " [rate_limit=" in task}


def _inspect(app: Any, workers: Collection[str]) -> Any:
    return app.control.inspect(destination=[*workers], timeout=ANSWER_WITHIN_S, limit=len(workers))


def _each_answer(workers: Collection[str], ask: Callable[[], Any]) -> Iterator[Any]:
    """Yield the elements of the workers' answers."""
    replies = (ask() or {}) if workers else {}
    if silent := sorted({*workers} - replies.keys()):
        raise MessagesUnknown(f"worker {', '.join(silent)} does not answer, and may have some")
    for worker, reply in replies.items():
        yield from _listed(worker, reply)


def _listed(worker: str, reply: Any) -> list[Any]:
    if not isinstance(reply, list):
        raise MessagesUnknown(f"worker {worker} answered {reply!r}")
    return reply
