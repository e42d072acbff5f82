"""A worker whose pool is the calling code: Celery's own way of a message, without a process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.concurrency.base import BasePool, apply_target
from celery.worker import state
from celery.worker.consumer import Consumer
from kombu.serialization import prepare_accept_content
from kombu.transport.memory import Channel

_MOST_DELIVERIES = 20
"""A message that has come more often than that comes for ever."""


class _Pool(BasePool):
    """Runs what it is given at once, for an app that is not the current one.

    Celery's own one, solo, makes the process a worker's for good: it sends `worker_process_init`.
    """

    body_can_be_buffer = True

    def on_apply(self, target: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return apply_target(target, args, {**(kwargs or {}), "app": self.app}, **options)


class _Consumer(Consumer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.qos = SimpleNamespace(increment_eventually=int, decrement_eventually=int)


class OneWorker:
    """Receives and executes what is in the queues of an app whose broker is in memory.

    A message with an eta is executed at once.

    Attributes:
        ends: How the broker has parted with each message: "ACK", "REJECTED" or "REQUEUED".
    """

    def __init__(self, app: Celery) -> None:
        self.ends: list[str] = []
        self._app = app
        self._due: list[tuple[Callable[..., Any], Any]] = []
        pool = _Pool(1, app=app)
        self._consumer: Any = _Consumer(
            lambda request: request.execute_using_pool(pool),
            app=app,
            pool=pool,
            timer=SimpleNamespace(call_at=self._call_at),
            controller=SimpleNamespace(state=state, use_eventloop=False),
            disable_rate_limits=True,
        )
        self._consumer.update_strategies()
        self._receive = self._consumer.create_task_handler()
        self._channel: Any = app.connection_for_read().default_channel
        Channel.queues.clear()  # all apps of the process share them

    def forget(self, task: Any) -> None:
        """Let the worker not know a task, as one that is deployed without it."""
        del self._consumer.strategies[task.name]

    def work(self, queue: str = "celery") -> None:
        """Execute all messages of a queue, also those that come again or come of it.

        Raises:
            RuntimeError: They don't end.
        """
        self.ends = []
        while (message := self._channel.basic_get(queue)) is not None:
            if len(self.ends) >= _MOST_DELIVERIES:
                self._channel.queue_purge(queue)
                raise RuntimeError(f"delivered {_MOST_DELIVERIES} times")
            message.accept = prepare_accept_content(self._app.conf.accept_content)
            self._receive(message)
            self._consumer.perform_pending_operations()
            while self._due:
                execute, args = self._due.pop()
                execute(*args)
            self._consumer.perform_pending_operations()
            self.ends.append(message._state)  # kombu tells it nowhere else

    def _call_at(self, _eta: float, execute: Callable[..., Any], args: Any = (), **_: Any) -> None:
        self._due.append((execute, args))
