"""Celery apps of simulated processes: one for each, as in reality; only the ends are replaced."""

from __future__ import annotations

import datetime as dt
import random
import secrets
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from billiard import einfo
from celery import Celery, _state
from celery.app import base, trace
from celery.app import task as celery_task
from celery.backends.base import BaseBackend
from celery.utils.threads import _LocalStack
from celery.worker import request, state

from celery_redlock import SingletonTask
from celery_redlock.execution import execution, kills, run
from celery_redlock.execution.execution import execute
from celery_redlock.messages import delivery, headers, requeue
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.threads.native import is_green
from tests.simulation.installation import Chance, HereOnly, Simulated, here
from tests.simulation.process import Process
from tests.simulation.schedule import MAX_SKEW_S, MAX_TTL_S
from tests.support.fakes.simulated_node import EPOCH_US
from tests.support.processes.project import celery_to_itself

from .prefork import Kernel, installed_kernel
from .schedule import LATE, QUEUE_TTL_S, Traffic

TTL_S = 1.0
_WAIT_S = 1.0
MOST_PROCESSES = 6


class Part:
    """What the replaced ends of an app ask: the part that a process has in a run.

    Attributes:
        process: The process.
        revoked: Ids of the tasks that are revoked, as far as the process has heard.
    """

    process: Process

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def publish(self, message: Any, how: dict[str, Any]) -> None:
        """Publish a message."""
        raise NotImplementedError

    def store(self, task_id: str, state: str, result: Any) -> None:
        """Store a result."""
        raise NotImplementedError

    def run_body(self, task: Any, seconds: float) -> None:
        """Run a task's body."""
        raise NotImplementedError

    def new_interrupt(self) -> Any:
        """Return what interrupts the body that is about to run."""
        raise NotImplementedError

    def execute(self, execute: Callable[[], Any]) -> Any:
        """Execute a message."""
        raise NotImplementedError


class App(Celery):
    """The app of one simulated process.

    Attributes:
        part: What the process does in the present run.
        kernel: What is between the processes of a pool.
    """

    part: Part
    kernel: Kernel

    def task_of(self, traffic: Traffic) -> Any:
        """Return the task of a schedule, declared when it is first asked for."""
        policy, acks, lifetime = traffic.policy, traffic.acks, traffic.lifetime
        is_prefork, delay = traffic.is_prefork, traffic.lock_delay
        name = f"{policy}.{acks}.{lifetime}{'.prefork' if is_prefork else ''}"
        if delay:
            name += f".{delay:g}"
        if name in self.tasks:
            return self.tasks[name]

        def body(_: Any, _key: str, seconds: float, retries: int = 0, pause: float = 0.0) -> str:
            task: Any = self.tasks[name]
            lost = None
            try:
                self.part.run_body(task, seconds)
            except LeaseLost as error:
                lost = error
            may_retry = task.request.retries < retries
            if lost and not (delay and may_retry):
                raise lost
            if may_retry:
                # A message that is requeued must not use them up.
                raise task.retry(countdown=pause, max_retries=retries, exc=lost)
            return "ran"

        options: dict[str, Any] = {"lock_wait": _WAIT_S} if policy == "wait" else {}
        if lifetime not in ("while_executing", "until_expired"):
            options["lock_queue_ttl"] = QUEUE_TTL_S
        declare: Any = self.task(
            base=SingletonTask, bind=True, shared=False, name=name, acks_late=acks == LATE,
            lock_key=["_key"], lock_ttl=TTL_S, lock_on_conflict=policy,
            lock_lifetime=lifetime, reject_on_worker_lost=is_prefork, lock_delay=delay,
            **options,
        )  # fmt: skip
        return declare(body)

    def now(self) -> dt.datetime:
        seconds = EPOCH_US / 1e6 + self.part.process.world.time
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)

    def _get_backend(self) -> Any:
        return _Results(app=self)


class _Results(BaseBackend):
    app: Any

    def store_result(
        self, task_id: Any, result: Any, state: Any, *_args: Any, **_kwargs: Any
    ) -> Any:
        self.app.part.store(task_id, state, result)
        return result


class _AnyDatetime(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, dt.datetime)


def _datetime(apps: list[App]) -> Any:
    """Return what stands in for `datetime`: of its functions, only `now`."""

    class Datetime(metaclass=_AnyDatetime):
        @staticmethod
        def now(zone: dt.tzinfo | None = None) -> dt.datetime:
            return apps[0].now().astimezone(zone)

    return Datetime


class _Revoked:
    """Stands in for a worker's set of revoked tasks."""

    def __init__(self, part: Callable[[], Part], original: Any) -> None:
        self._part = part
        self._original = original
        self._thread = threading.get_ident()

    def add(self, task_id: str) -> None:
        self._set().add(task_id)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._set()

    def _set(self) -> Any:
        is_here = threading.get_ident() == self._thread
        return self._part().revoked if is_here else self._original


def _new_app(number: int, kernel: Kernel) -> App:
    app = App(f"p{number}", broker="memory://", set_as_current=False)
    app.kernel = kernel
    app.conf.update(
        redlock_nodes=["redis://n0"], redlock_max_ttl=MAX_TTL_S, redlock_max_clock_skew=MAX_SKEW_S
    )

    def send(
        producer: Any, name: str, message: Any, headers: Any = None, retry: Any = None,
        retry_policy: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        message.headers.update(headers or {})
        app.part.publish(message, {"retry_policy": retry_policy})

    vars(app.amqp)["send_task_message"] = send  # a cached property

    app.finalize()
    # What nobody has set, Celery looks for in each source, for each message.
    conf: Any = app.conf
    conf.changes.update({**conf})
    return app


@contextmanager
def installed_apps(simulated: Simulated) -> Iterator[list[App]]:
    """Yield apps for the processes of simulations in this thread."""
    assert not is_green()
    chance = Chance(simulated)
    chances = {"uniform": chance.uniform, "token_hex": chance.token_hex}
    stack: Any = _LocalStack()  # by greenlet

    def part() -> Part:
        process = simulated.now()
        return next(app.part for app in apps if app.part.process is process)

    def new_interrupt() -> Any:
        return part().new_interrupt()

    def limited(message: Any, **how: Any) -> Any:
        return part().execute(lambda: execute(message, **how))

    with (
        celery_to_itself(), pytest.MonkeyPatch.context() as patch,
        installed_kernel(simulated) as kernel,
    ):  # fmt: skip
        for module in (_state, base, celery_task, trace):
            patch.setattr(module, "_task_stack", stack)
        # Nobody reads tracebacks, and to copy them takes longer than all else.
        patch.setattr(einfo, "Traceback", lambda *_, **__: None)
        patch.setattr(einfo, "traceback", HereOnly(traceback, {"format_exception": lambda *_: []}))
        patch.setattr(requeue, "random", HereOnly(random, chances))
        for module in (delivery, headers):
            patch.setattr(module, "secrets", HereOnly(secrets, chances))
        interrupts = HereOnly(interrupt, {"new_interrupt": new_interrupt})
        patch.setattr(run, "interrupt", interrupts)
        patch.setattr(execution, "execute", here(execute, limited))
        # Lines that a dead process still runs; and here all processes share what waits for Celery.
        patch.setattr(run, "await_outcome", here(kills.await_outcome, lambda *_: None))
        apps = [_new_app(number, kernel) for number in range(MOST_PROCESSES)]
        # Expiry is a matter of the wall clock.
        clock = _datetime(apps)
        patch.setattr(headers, "dt", HereOnly(dt, {"datetime": clock}))
        patch.setattr(request, "datetime", HereOnly(dt.datetime, {"now": clock.now}))
        patch.setattr(request, "revoked_tasks", _Revoked(part, state.revoked))
        yield apps
        for app in apps:
            app.close()
