"""Celery apps of simulated processes: one for each, as in reality; only the ends are replaced."""

from __future__ import annotations

import datetime as dt
import random
import secrets
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from billiard import einfo
from celery import Celery, _state
from celery.app import base, trace
from celery.app import task as celery_task
from celery.backends.base import BaseBackend
from celery.utils.threads import _LocalStack

from celery_redlock import SingletonTask
from celery_redlock.messages import headers, requeue
from celery_redlock.pools import interrupt
from celery_redlock.redlock.threads.native import is_green
from tests.simulation.installation import Chance, HereOnly, Simulated
from tests.simulation.process import Process
from tests.simulation.schedule import MAX_SKEW_S, MAX_TTL_S
from tests.support.fakes.simulated_node import EPOCH_US
from tests.support.processes.project import celery_to_itself

from .schedule import LATE, QUEUE_TTL_S

TTL_S = 1.0
_WAIT_S = 1.0
MOST_PROCESSES = 6


class Part:
    """What the replaced ends of an app ask: the part that a process has in a run."""

    process: Process

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


class App(Celery):
    """The app of one simulated process.

    Attributes:
        part: What the process does in the present run.
    """

    part: Part

    def task_of(self, policy: str, acks: str, lifetime: str) -> Any:
        """Return the task with these options, declared when it is first asked for."""
        name = f"{policy}.{acks}.{lifetime}"
        if name in self.tasks:
            return self.tasks[name]

        def body(_: Any, _key: str, seconds: float) -> str:
            self.part.run_body(self.tasks[name], seconds)
            return "ran"

        options: dict[str, Any] = {"lock_wait": _WAIT_S} if policy == "wait" else {}
        declare: Any = self.task(
            base=SingletonTask, bind=True, shared=False, name=name, acks_late=acks == LATE,
            lock_key=["_key"], lock_ttl=TTL_S, lock_on_conflict=policy,
            lock_lifetime=lifetime, lock_queue_ttl=QUEUE_TTL_S, **options,
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


def _new_app(number: int) -> App:
    app = App(f"p{number}", broker="memory://", set_as_current=False)
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

    def new_interrupt() -> Any:
        process = simulated.now()
        return next(app.part for app in apps if app.part.process is process).new_interrupt()

    with celery_to_itself(), pytest.MonkeyPatch.context() as patch:
        for module in (_state, base, celery_task, trace):
            patch.setattr(module, "_task_stack", stack)
        # Nobody reads tracebacks, and to copy them takes longer than all else.
        patch.setattr(einfo, "Traceback", lambda *_, **__: None)
        patch.setattr(einfo, "traceback", HereOnly(traceback, {"format_exception": lambda *_: []}))
        patch.setattr(requeue, "random", HereOnly(random, chances))
        patch.setattr(headers, "secrets", HereOnly(secrets, chances))
        interrupts = HereOnly(interrupt, {"new_interrupt": new_interrupt})
        patch.setattr("celery_redlock.execution.run.interrupt", interrupts)
        apps = [_new_app(number) for number in range(MOST_PROCESSES)]
        yield apps
        for app in apps:
            app.close()
