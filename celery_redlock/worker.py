"""The worker's side: what is checked before it takes the first task."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from billiard import current_process
from billiard.exceptions import WorkerLostError
from celery import Celery, Task, bootsteps, states
from celery.concurrency.prefork import TaskPool
from celery.exceptions import TimeLimitExceeded
from celery.signals import (
    task_failure,
    task_postrun,
    task_received,
    task_rejected,
    task_retry,
    task_revoked,
    task_unknown,
    worker_process_init,
    worker_shutdown,
)
from kombu.serialization import registry as serializers  # type: ignore[attr-defined]

from . import interrupt, publish, run
from .options import Lifetime
from .plan import new_plan
from .prefork import MainKeeper, is_supported
from .redlock.errors import LeaseLost
from .runtime import is_enabled, new_redlock, redlock_of
from .settings import settings_from

logger = logging.getLogger(__name__)


class CheckNodes(bootsteps.Step):
    """Refuses to start the worker on nodes that can never be a quorum.

    Nodes that are only away are named in the log: they may come back.
    """

    requires = ("celery.worker.components:Timer",)

    def create(self, parent: Any) -> None:
        """Connect to every node once, and close the connections before the pool forks.

        Not when the worker's parts are started: their order is not the same each time, and the pool
        may have forked by then.
        """
        app = parent.app
        if not is_enabled(app):
            return
        redlock = new_redlock(settings_from(app.conf))
        try:
            errors = redlock.check()
        finally:
            redlock.close()
        up = len(redlock.nodes) - len(errors)
        if up < redlock.quorum:
            why = "; ".join(f"{node}: {error}" for node, error in errors.items())
            logger.error("no quorum at start up=%d of=%d errors=%s", up, len(redlock.nodes), why)


class PoolKeeper(bootsteps.StartStopStep):
    """Keeps the leases of a prefork pool's processes in the main process."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        self._keeper: MainKeeper | None = None
        super().__init__(parent, **kwargs)

    def create(self, parent: Any) -> None:
        """Make what the pool's processes are to inherit; they are forked after this."""
        app = parent.app
        forks = getattr(parent, "pool_start_method", "fork") == "fork"
        if is_supported and forks and issubclass(parent.pool_cls, TaskPool) and is_enabled(app):
            self._keeper = MainKeeper(lambda: new_redlock(settings_from(app.conf)))
            _keepers[os.getpid()] = app, self._keeper

    def start(self, parent: Any) -> None:
        """Start to listen to the pool."""
        if self._keeper:
            self._keeper.start()
            # Not `stop`: in a warm shutdown that comes before the pool's processes have ended.
            worker_shutdown.connect(self._stop, sender=parent, weak=False)

    def _stop(self, **_kwargs: Any) -> None:
        if self._keeper:
            self._keeper.stop()


_keepers: dict[int, tuple[Celery, MainKeeper]] = {}
"""The app and keeper of the worker whose main process has this pid; its children find it here."""


@worker_process_init.connect
def _in_pool_process(**_kwargs: Any) -> None:
    if os.getppid() in _keepers:
        app, keeper = _keepers[os.getppid()]
        process: Any = current_process()
        run.child_end = keeper.child_end(process.index, redlock_of(app))
    interrupt.listen(run.strike_current)


@task_postrun.connect
def _after_run(task: Any, state: str | None = None, **_kwargs: Any) -> None:
    """Give back what a run still holds when it was interrupted while it gave it back."""
    if state is not None and not task.request.is_eager:
        run.give_back_after_all()
    if not hasattr(task.request, "redlock_run"):
        # It ended before it was called. A retry takes its reservation with it.
        if state != states.RETRY:
            _give_back(task, task.request.headers)
        return
    left = task.request.redlock_run
    if left:
        # It does not run any more, wherever it was interrupted.
        run.current.set(left.outer)
        # One that never came to its body may not leave a done mark.
        left.end(None if left.is_over else LeaseLost(left.lease.key))
        left.settle()


@task_failure.connect
def _failed(
    sender: Task[Any, Any],
    task_id: str | None = None,
    exception: object = None,
    **_kwargs: Any,
) -> None:
    """In the main process: a process died, or will be killed, and its task with it."""
    # Up to Celery 5.6 one attribute was for both.
    acks = getattr(sender, "acks_on_timeout", sender.acks_on_failure_or_timeout)
    is_put_back = sender.acks_late and isinstance(exception, TimeLimitExceeded) and not acks
    _pass_on(task_id, comes_again=bool(is_put_back))
    request = _received.get(str(task_id))
    if request and isinstance(exception, TimeLimitExceeded | WorkerLostError) and not is_put_back:
        _give_back(sender, request.request_dict)


@task_retry.connect
def _retried(sender: Task[Any, Any], request: Any = None, **_kwargs: Any) -> None:
    """In the main process: a process died, and its task is published anew as a retry.

    Unless it is acknowledged early: then it was cancelled in a shutdown, and nothing is published.
    """
    if sender.acks_late:
        _pass_on(request.id, comes_again=False)


@task_revoked.connect
def _terminated(request: Any = None, terminated: object = None, **_kwargs: Any) -> None:
    if terminated:
        _pass_on(request.id, comes_again=False)


def _pass_on(task_id: str | None, *, comes_again: bool) -> None:
    _, keeper = _keepers.get(os.getpid(), (None, None))
    if keeper and task_id:
        keeper.hear_verdict(str(task_id), comes_again=comes_again)


@task_revoked.connect
def _before_it_started(sender: Any, request: Any = None, **_kwargs: Any) -> None:
    """Give back the reservation of a message that was revoked, or expired, before it was run."""
    _give_back(sender, getattr(request, "headers", None))


@task_rejected.connect
@task_unknown.connect
def _never_run(sender: Any, message: Any = None, **_kwargs: Any) -> None:
    """Give back the reservation of a message that this worker can make nothing of."""
    reservation = publish.reservation_in(getattr(message, "headers", None))
    if reservation:
        publish.give_back(redlock_of(sender.app), reservation)


@task_received.connect
def _on_received(request: Any = None, **_kwargs: Any) -> None:
    """In the main process: note what the process that takes it is not told, or may die with."""
    serializer = serializers.type_to_name.get(request.content_type)
    if serializer:
        request.request_dict[run.SERIALIZER] = serializer
    if publish.reservation_in(request.request_dict):
        _received[str(request.id)] = request


_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""What the worker is about to run of messages with reservations, by task id."""


def _give_back(task: Task[Any, Any], headers: Mapping[str, Any] | None) -> None:
    """Give back what a message has reserved, unless it is a throttle.

    One that was run has nothing reserved any more: its lease superseded that.
    """
    reservation = publish.reservation_in(headers)
    if reservation is None or not is_enabled(task.app):
        return
    if new_plan(task, task.app).options.lifetime is not Lifetime.UNTIL_EXPIRED:
        publish.give_back(redlock_of(task.app), reservation)


def install(app: Celery) -> None:
    """Add to the app's workers what singleton tasks need; may be called again."""
    app.steps["worker"].add(CheckNodes)
    app.steps["worker"].add(PoolKeeper)
