"""Handlers of Celery's signals, connected once, for all apps, when this module is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from billiard import current_process
from billiard.exceptions import WorkerLostError
from celery import Celery, Task, states
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
    worker_shutting_down,
)
from kombu.serialization import registry as serializers  # type: ignore[attr-defined]

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.task_config import is_singleton
from celery_redlock.execution import kills, running
from celery_redlock.messages import reservation as reservations
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import RESERVATION_HEADER, SERIALIZER, message_headers
from celery_redlock.messages.origin import ORIGIN, find_origin
from celery_redlock.pools import interrupt, pool_process
from celery_redlock.redlock.errors import ConfigurationError, LeaseLost, RedlockError

from .node_watch import mute_node_lines
from .peers import peers_of

if TYPE_CHECKING:
    from celery_redlock.pools.prefork_keeper import PreforkKeeper

keepers: dict[int, tuple[Celery, PreforkKeeper]] = {}
"""App and keeper of a worker, by the pid of its main process; pool processes inherit the dict."""


@worker_shutting_down.connect
def note_shutdown(**_kwargs: Any) -> None:
    """In the main process: note the shutdown, for which messages that wait for a lock are requeued.

    May run in an operating system's signal handler: in the solo pool, even during such a wait.
    """
    pool_process.note_shutdown(is_under_way=True)
    _, keeper = keepers.get(os.getpid(), (None, None))
    if keeper:
        keeper.note_shutdown()


@worker_process_init.connect
def _on_pool_process_init(**_kwargs: Any) -> None:
    """In a new pool process: connect to the keeper, and install the interrupt's handler."""
    if os.getppid() in keepers:
        app, keeper = keepers[os.getppid()]
        process: Any = current_process()
        redlock = mute_node_lines(redlock_of(app))
        pool_process.set_keeper_client(keeper.keeper_client(process.index, redlock))
    interrupt.install_signal_handler(running.interrupt_current)


@task_postrun.connect
def _on_postrun(task: Any, state: str | None = None, **_kwargs: Any) -> None:
    """Release what a run still holds if it was interrupted during its release."""
    request = task.request
    if state is not None:
        # Without a state this process was told to exit: the keeper releases what its last attempt
        # was granted when the process is dead.
        pool_process.withdraw_attempts()
        if not request.is_eager:
            running.release_deferred_to_main()
    if request not in running.executions:
        # The task ended before it was called. A retry still needs its reservation.
        if state != states.RETRY:
            release_reservation(task, message_headers(request))
        return
    left = running.executions.pop(request)
    if left:
        # Its body does not run any more, wherever the run was interrupted.
        running.current.set(left.outer)
        # A run that never reached its body may not leave a done mark.
        left.end(None if left.is_over else LeaseLost(left.lease.key))
        left.settle()


@task_failure.connect
def _on_failure(
    sender: Task[Any, Any],
    task_id: str | None = None,
    exception: object = None,
    **_kwargs: Any,
) -> None:
    """In the main process: handle the end of a task whose process died, or will be killed."""
    is_requeued = isinstance(exception, TimeLimitExceeded) and kills.will_be_redelivered_on_timeout(
        sender
    )
    _record_task_outcome(task_id, will_be_redelivered=is_requeued)
    request = _received.get(str(task_id))
    if request and isinstance(exception, TimeLimitExceeded | WorkerLostError) and not is_requeued:
        release_reservation(sender, request.request_dict)


@task_retry.connect
def _on_retry(
    sender: Task[Any, Any], request: Any = None, reason: object = None, **_kwargs: Any
) -> None:
    """In the main process: handle a run that was cut short, whose task is to be retried.

    With a reason, its process died and the task was published again. Without one, the run was
    cancelled, by a lost connection to the broker or a shutdown: it has not ended yet, and its
    message comes again unless it was acknowledged early.
    """
    if sender.acks_late:
        _record_task_outcome(request.id, will_be_redelivered=reason is None)


@task_revoked.connect
def _on_terminated(request: Any = None, terminated: object = None, **_kwargs: Any) -> None:
    """In the main process: handle a task that was terminated while it ran."""
    if terminated:
        _record_task_outcome(request.id, will_be_redelivered=False)


def _record_task_outcome(task_id: str | None, *, will_be_redelivered: bool) -> None:
    _, keeper = keepers.get(os.getpid(), (None, None))
    if keeper and task_id:
        keeper.record_task_outcome(str(task_id), will_be_redelivered=will_be_redelivered)
    if task_id and not will_be_redelivered:
        kills.settle_killed(str(task_id))


@task_revoked.connect
def _on_revoked(sender: Any, request: Any = None, **_kwargs: Any) -> None:
    """Release the reservation of a message that was revoked, or expired, before it was run."""
    if request is None:
        return
    release_reservation(sender, message_headers(request))
    reservation = reservations.reservation_of(sender.name, message_headers(request))
    if reservation and reservations.is_pending_slot_key(reservation.key):
        delivery = Delivery.of(sender, request)
        if delivery.is_copy:
            _release_left(delivery, reservation)


def _release_left(delivery: Delivery, reservation: reservations.Reservation) -> None:
    """Release the pending slot that an earlier delivery had renewed when its worker died."""
    try:
        redlock = redlock_of(delivery.task.app)
        reservations.release_left_slot(redlock, reservation.key, delivery.has_owner)
    except RedlockError as error:
        reservations.log_not_released(reservation, error)


@task_rejected.connect
@task_unknown.connect
def _on_unrunnable(sender: Any, message: Any = None, **_kwargs: Any) -> None:
    release_unrunnable(sender.app, message)


def release_unrunnable(app: Celery, message: Any) -> None:
    """Release the reservation of a message that this worker can't run."""
    headers = getattr(message, "headers", None) or {}
    if RESERVATION_HEADER not in headers:
        return
    try:
        # Messages of Celery's protocol 1 name their task in the body.
        name = headers["task"] if "task" in headers else message.payload["task"]
    except Exception:  # noqa: BLE001  # whatever a serializer raises, or a body that is none
        return
    reservation = reservations.reservation_of(str(name), headers)
    if reservation:
        _release(app, reservation)


@task_received.connect
def _on_received(sender: Any = None, request: Any = None, **_kwargs: Any) -> None:
    """In the main process: note what its pool process is not told, and where it was locked."""
    if is_singleton(request.task):
        _note_singleton(sender, request)
    peers = peers_of.get(request.task.app)
    if peers:
        peers.received(request.request_dict)


def _note_singleton(consumer: Any, request: Any) -> None:
    """Note serializer and origin, and the request if it has a reservation.

    The pool process that runs the message is not told the serializer, nor the queue; it may die,
    and the request with it.
    """
    # Both assignments overwrite headers of these names, which anybody can set.
    request.request_dict[SERIALIZER] = serializers.type_to_name.get(request.content_type)
    task_consumer = getattr(consumer, "task_consumer", None)
    request.request_dict[ORIGIN] = find_origin(task_consumer, request)
    if RESERVATION_HEADER in request.request_dict:
        _received[str(request.id)] = request


_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Requests of messages with reservations that the worker has received, by task id."""


def release_reservation(task: Task[Any, Any], headers: Mapping[str, Any] | None) -> None:
    """Release the reservation of a message, unless it is the period of a throttle.

    A message that was run under its lock has no reservation left: the lease superseded it. Even if
    `redlock_enabled` is false here, producers may still reserve.
    """
    reservation = reservations.reservation_of(task.name, headers)
    if reservation and not reservation.is_period:
        _release(task.app, reservation)


def _release(app: Celery, reservation: reservations.Reservation) -> None:
    try:
        redlock = redlock_of(app)
    except ConfigurationError as error:  # a worker that locks nothing needs no nodes
        reservations.log_not_released(reservation, error)
    else:
        reservations.release_reservation(redlock, reservation)
