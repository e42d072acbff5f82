"""Processes of one fleet that differ, producers and workers: this process is each in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery
from celery.local import maybe_evaluate

from celery_redlock import DuplicateTask, SingletonTask
from celery_redlock.config.options import ALLOWED, Lifetime
from celery_redlock.redlock.lease import is_period

from .forged import deliver
from .one_node import OneNode

PERIOD = 600.0
"""Of the throttle, in seconds: longer than a lease may be."""
Message = dict[str, Any]


class Fleet:
    """One task in processes that differ, with one node and one queue.

    Attributes:
        node: The node.
        task: The task; `as_of` makes it that of a process.
        queue: Messages that were published, and not taken.
        runs: Ids of the messages whose body has begun.
        policy: Conflict policy in each process whose lifetime allows it.
        at_start: Called once by each body, in the order of the runs.
    """

    def __init__(self, app: Celery, node: OneNode, published: list[Message]) -> None:
        self.node = node
        self.queue = published
        self.runs: list[str] = []
        self.policy = "skip"
        self.at_start: list[Callable[[], object]] = []

        @app.task(bind=True, base=SingletonTask, name="t", lock_key=[], acks_late=True)
        def body(task: Any, tenant: int = 7) -> str:
            self.runs.append(task.request.id)
            if self.at_start:
                self.at_start.pop(0)()
            return "done"

        self.task: Any = maybe_evaluate(body)

    def as_of(self, lifetime: Lifetime, lock_key: object = ()) -> Any:
        """Return the task as a process has it, with its lifetime and its rule for keys."""
        self.task.lock_key = list(lock_key) if isinstance(lock_key, tuple) else lock_key
        self.task.lock_lifetime = lifetime.value
        self.task.lock_ttl = PERIOD if lifetime.is_throttle else 30.0
        self.task.lock_on_conflict = self.policy if self.policy in ALLOWED[lifetime] else "skip"
        return self.task

    def call(self, lifetime: Lifetime, lock_key: object = ()) -> str:
        """Publish a call as a producer does; return the id that it is told."""
        task, told = self.as_of(lifetime, lock_key), list[str]()
        # A producer is not part of the body during which it calls.
        caller = threading.Thread(target=lambda: told.append(task.delay().id))
        caller.start()
        caller.join()
        return told[0]

    def take(self, lifetime: Lifetime, lock_key: object = ()) -> None:
        """Have a worker execute the first message of the queue."""
        message = {name: said for name, said in self.queue.pop(0).items() if name != "task"}
        deliver(self.as_of(lifetime, lock_key), **message)

    def drain(self, workers: Sequence[Lifetime]) -> None:
        for turn in range(100):
            if not self.queue:
                return
            self.take(workers[turn % len(workers)])
            self.node.clock.move(60.0)
        raise AssertionError(f"messages go round: {self.queue}")

    def has_run(self, task_id: str) -> bool:
        """Return whether a call has run, or is the duplicate of one that has."""
        if task_id in self.runs:
            return True
        result = self.task.AsyncResult(task_id).result
        return isinstance(result, DuplicateTask) and self.has_run(str(result.holder))

    def assert_free(self, *lifetimes: Lifetime) -> None:
        """Check that nothing is held, except for the rest of a throttle's period."""
        now = self.node.clock.now()
        held = {key: one for key, one in self.node.held.items() if one[1] > now}
        if any(lifetime.is_throttle for lifetime in lifetimes) and "t" in held:
            owner, ends = held.pop("t")
            assert is_period(owner)
            assert ends <= now + PERIOD
        assert held == {}
