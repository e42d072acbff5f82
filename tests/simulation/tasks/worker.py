"""Simulated workers, with Celery's own request and tracer, and the client that calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError
from celery.signals import task_received
from celery.worker.request import Request
from kombu.exceptions import OperationalError

from celery_redlock.redlock.errors import LeaseLost, LockHeld
from celery_redlock.redlock.task_lock import TaskLock
from tests.simulation.process import Process
from tests.simulation.world import Task

from .apps import App, Part
from .broker import Broker, Channel, Copy
from .judge import Execution, TaskJudge
from .schedule import Call

_SERVER_ANSWERS_S = 0.001
_NEVER = 1e9


class Caller(Part):
    """The client: it calls the task.

    Args:
        process: Its process.
        broker: Where it publishes.
        judge: What hears of its calls.

    Attributes:
        is_done: Whether it has made its calls.
    """

    def __init__(self, process: Process, broker: Broker, judge: TaskJudge) -> None:
        super().__init__()
        self.process = process
        self.is_done = False
        self._broker = broker
        self._judge = judge

    def call(self, task: Any, calls: list[tuple[int, Call]]) -> None:
        """Publish each call in its time."""
        for number, call in calls:
            self.process.sleep(1000.0 + call.at - self.process.world.time)
            task_id = f"t{number}"
            args = (call.key, call.runs, *((call.retries, call.pause) if call.retries else ()))
            self._judge.note_called(task_id, call)
            try:
                task.apply_async(
                    args, task_id=task_id, countdown=call.countdown, expires=call.expires or None,
                    soft_time_limit=call.soft_limit or None,
                )  # fmt: skip
            except OperationalError:
                self.process.world.note(f"{task_id} is not known to be published")
                self._judge.note_unpublished(task_id)
            except LockHeld:
                self.process.world.note(f"{task_id} is refused")
        self.is_done = True

    def publish(self, message: Any, how: dict[str, Any]) -> None:
        self._broker.publish(self.process, message, how)


class Worker(Part):
    """A worker of the solo pool, which renews its own leases.

    Args:
        process: Its process.
        app: Its app.
        redlock: The app's lock.
        broker: Where it takes messages from.
        judge: What hears of its runs.
        prefetch: How many messages it takes at once.

    Attributes:
        is_idle: Whether it waits for a message.
        request: Celery's request of the message that it executes.
        execution: What the judge knows of that.
        in_hand: Id of the task whose message is acknowledged, and being executed.
    """

    def __init__(
        self, process: Process, app: App, redlock: TaskLock, broker: Broker, judge: TaskJudge,
        prefetch: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.process = process
        self.redlock = redlock
        self.is_idle = False
        self.execution: Execution | None = None
        self.request: Any = None
        self.in_hand: str | None = None
        self._app = app
        self._broker = broker
        self._judge = judge
        self._prefetch = prefetch
        self._channel = self._connect()
        self._taken: list[Copy] = []
        self._waiting: list[tuple[float, Copy]] = []
        self._interrupt = _Interrupt(self)
        self._is_limited = False

    # ---- messages

    def work(self, begins_at: float) -> None:
        """Execute messages until there are no more."""
        process = self.process
        process.sleep(begins_at - process.world.time)
        while not self._judge.is_over():
            process.step()
            copy, until = self._next()
            if copy:
                self._execute(copy)
                continue
            self.is_idle = True
            process.world.wait(until)
            self.is_idle = False

    def reconnect(self) -> None:
        """Lose the connection; what is not begun is forgotten, what runs is not."""
        self._channel.reset()
        self._channel = self._connect()
        self._taken, self._waiting = [], []

    def _connect(self) -> Channel:
        return Channel(self._broker, self.process, lambda: self._judge.note_dead(self))

    def _next(self) -> tuple[Copy | None, float]:
        """Return a message to execute now; or None, and when the next one is due."""
        now = self.process.world.time
        self._waiting.sort(key=lambda one: one[0])
        if self._waiting and self._waiting[0][0] <= now:
            return self._waiting.pop(0)[1], now
        while len(self._taken) < self._prefetch:
            copy = self._broker.take(self._channel)
            if copy is None:
                break
            due = copy.due_at
            if due > now:
                self._waiting.append((due, copy))
            else:
                self._taken.append(copy)
        if self._taken:
            return self._taken.pop(0), now
        return None, min((due for due, _ in self._waiting), default=_NEVER)

    def _execute(self, copy: Copy) -> None:
        channel, broker = self._channel, self._broker

        def on_ack(_logger: Any, _errors: Any) -> None:
            self.process.step()
            broker.acknowledge(channel, copy)
            self.process.step()

        def on_reject(_logger: Any, _errors: Any, requeue: bool) -> None:
            self.process.step()
            broker.reject(channel, copy, requeue=requeue)
            self.process.step()

        request: Any = Request(
            copy, on_ack=on_ack, on_reject=on_reject, app=self._app, hostname=self.process.name,
            decoded=True,
        )  # fmt: skip
        self.request = request
        task_received.send(sender=None, request=request)
        self.execution = execution = self._judge.note_begun(self, copy)
        if not request.task.acks_late:
            self.in_hand = copy.task_id
        with suppress(TaskRevokedError):
            request.execute_using_pool(self)
        self.in_hand = None
        self.process.world.note(f"{self.process.name} has executed {copy.task_id}")
        self._judge.note_executed(execution)

    def apply_async(
        self, trace: Callable[..., Any], args: tuple[Any, ...], accept_callback: Callable[..., Any],
        callback: Callable[..., Any], soft_timeout: float | None = None, **_: Any,
    ) -> None:  # fmt: skip
        """Trace a task here, as the solo pool does, with its soft time limit as prefork has it."""
        accept_callback(0, 0.0)
        if soft_timeout:
            process, execution = self.process, self.execution
            process.world.at(process.until(soft_timeout), self._limit, execution)
        callback(trace(*args, app=self._app))

    def execute(self, execute: Callable[[], Any]) -> Any:
        # In the rest of a trace a limit may strike as well, and Celery tells nobody how it ended.
        self._is_limited = True
        try:
            return execute()
        finally:
            self._is_limited = False

    def _limit(self, execution: Execution) -> None:
        def strike() -> None:
            if self.execution is execution and self._is_limited:
                process.world.note(f"the soft time limit of {execution.task_id} strikes")
                raise SoftTimeLimitExceeded

        process = self.process
        if self.execution is execution and self._is_limited:
            process.signal(strike)

    # ---- the ends of the app

    def publish(self, message: Any, how: dict[str, Any]) -> None:
        self._broker.publish(self.process, message, how)

    def store(self, task_id: str, state: str, result: Any) -> None:
        self.process.sleep(_SERVER_ANSWERS_S)
        self._judge.note_stored(self.execution, task_id, state, result)
        self.process.sleep(_SERVER_ANSWERS_S)

    def new_interrupt(self) -> _Interrupt:
        self._interrupt = _Interrupt(self)
        return self._interrupt

    def run_body(self, task: Any, seconds: float) -> None:
        process, execution = self.process, self.execution
        assert execution
        self._judge.note_body(execution, task)
        ends_at = process.until(seconds)
        while process.world.time < ends_at:
            process.step()
            self._interrupt.wait(ends_at)
        process.step()
        self._judge.note_run(execution)


class _Interrupt:
    """Raises LeaseLost in a body that waits."""

    def __init__(self, worker: Worker) -> None:
        self._process = worker.process
        self._body: Task | None = None
        self._is_triggered = self._is_disarmed = False

    def trigger(self) -> None:
        self._is_triggered = True
        if self._body:
            self._process.world.wake(self._body)

    def disarm(self) -> None:
        self._is_disarmed = True

    def wait(self, until: float) -> None:
        """Wait in the body.

        Raises:
            LeaseLost: The lease is lost.
        """
        world = self._process.world
        if not self._is_triggered:
            self._body = world.current
            world.wait(until)
            self._body = None
        if self._is_triggered and not self._is_disarmed:
            raise LeaseLost
