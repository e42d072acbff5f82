"""Outcomes of an execution that does not run under its lock: what `decision` says is done here.

Each function that ends the execution raises an exception that Celery's tracer handles.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from celery import states
from celery.contrib.abortable import AbortableTask
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_revoked

from celery_redlock.config.options import OnConflict
from celery_redlock.messages import requeue
from celery_redlock.messages.headers import COPY_HEADER
from celery_redlock.messages.reservation import (
    Reservation,
    pending_slot_key,
    release_reservation,
)
from celery_redlock.pools.pool_process import is_shutting_down
from celery_redlock.redlock.errors import (
    DuplicateTask,
    LockHeld,
    QuorumUnavailable,
    shown,
)
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import host_of, task_of
from celery_redlock.signals import lock_conflict
from celery_redlock.throttled_log import ThrottledLog

from . import no_quorum
from .decision import Action, Outcome, Refused, Situation, decide, decide_on_slot
from .kills import is_revoked
from .message import Message
from .monitors import send_event

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_DROPPING = (OnConflict.SKIP, OnConflict.COMPLETE)
_drops: dict[str, ThrottledLog] = {}
"""By name of the task."""


class Skipped(Ignore):
    """Ending of an execution whose result is stored already, as `duplicate`: its one argument."""

    @property
    def duplicate(self) -> DuplicateTask:
        """The stored result."""
        duplicate: DuplicateTask = self.args[0]
        return duplicate


def conclude(message: Message, refused: Refused) -> bool:
    """Conclude an execution that was refused its lock.

    Returns:
        Whether the body is to run without the lock; if not, the task's result is its
        `lock_conflict_result`. Every other outcome is an exception.
    """
    outcome, slot = decide(_situation(message, refused), refused), None
    if outcome.action is Action.COALESCE:
        try:
            slot = message.reserve_slot(outcome.after)
        except QuorumUnavailable as error:
            return conclude(message, error)
        except LockHeld as waiting:
            end = decide_on_slot(_situation(message, waiting), waiting)
            if end:
                return _carry_out(message, end, waiting, None)
    return _carry_out(message, outcome, refused, slot)


def _carry_out(message: Message, outcome: Outcome, refused: Any, slot: Reservation | None) -> bool:
    if outcome.announced:
        announce(message, refused, outcome.announced)
    if outcome.releases:
        message.release_reservation()
    elif outcome.action in (Action.PARK, Action.DISCARD):
        message.must_release = False  # another copy may rely on it
    match outcome.action:
        case Action.RUN | Action.COMPLETE:
            return outcome.action is Action.RUN
        case Action.RAISE:
            raise refused
        case Action.SKIP:
            return store_skipped(message, refused)
        case Action.DISCARD:
            return end_copy(message)
        case Action.PARK:
            return park(message, refused, outcome.after)
    slot = slot or message.renew_slot(outcome.after)
    return reschedule(message, refused, outcome.after, slot)


def _situation(message: Message, refused: Exception) -> Situation:
    delivery, options = message.delivery, message.options
    held = refused if isinstance(refused, LockHeld) else None
    return Situation(
        options.on_conflict,
        options.on_unavailable,
        options.ttl,
        is_eager=delivery.request.is_eager,
        has_queue=delivery.can_be_requeued,
        is_copy=delivery.is_copy,
        is_shutting_down=is_shutting_down(),
        is_own=held is not None and delivery.has_owner(held.owner),
        is_slot=held is not None and held.key == pending_slot_key(message.key),
        has_result=message.has_result
        or (held is not None and _is_held_by_same_task(message, held)),
    )


def announce(message: Message, held: LockHeld | QuorumUnavailable, outcome: str) -> None:
    """Log a conflict, and send it to signal receivers and monitors."""
    if isinstance(held, QuorumUnavailable):
        no_quorum.announce(message, held, outcome)
        return
    task, request, holder = message.task, message.request, task_of(held.owner)
    held.name_task(task.name)
    # Other outcomes run the work later, or fail loudly.
    logger.log(
        _level(task.name) if outcome in _DROPPING else logging.INFO,
        "lock conflict key=%s task=%s task_id=%s holder_task_id=%s holder_host=%s remaining_s=%.3f "
        "outcome=%s",
        held.key, task.name, shown(request.id), shown(holder), shown(host_of(held.owner)),
        held.remaining, outcome,
    )  # fmt: skip
    lock_conflict.send(sender=task, task_id=request.id, error=held, outcome=outcome, at="execution")
    send_event(message.delivery, "task-deduplicated", key=held.key, holder=holder, outcome=outcome)


def _level(task: str) -> int:
    """Return WARNING twice a minute for each task whose calls are dropped, else INFO."""
    level = _drops.setdefault(task, ThrottledLog()).occurred(logging.WARNING)
    return max(level, logging.INFO)


def store_skipped(message: Message, held: LockHeld) -> NoReturn:
    """End the execution as REVOKED, with DuplicateTask as its result.

    Ignore without a stored result would leave `get()`, chords and chains waiting for ever.
    """
    task, request = message.task, message.request
    duplicate = DuplicateTask(
        held.key, task_of(held.owner), held.remaining, task.name, held.hostname, held.held_since
    )
    if not request.is_eager or task.store_eager_result:
        task.backend.mark_as_failure(
            str(request.id),
            duplicate,
            request=request,
            store_result=not is_result_ignored(task, request),
            call_errbacks=False,
            state=states.REVOKED,
        )
    raise Skipped(duplicate) from held


def end_revoked(message: Message) -> NoReturn:
    """End the execution of a task that was revoked while it waited for its lock.

    As Celery ends a task that was revoked before its worker began to execute it.
    """
    task, request = message.task, message.request
    logger.info(
        "task revoked, its wait for the lock ended key=%s task=%s task_id=%s",
        message.key, task.name, shown(request.id),
    )  # fmt: skip
    task.backend.mark_as_revoked(
        str(request.id),
        "revoked",
        request=request,
        store_result=not is_result_ignored(task, request),
    )
    send_event(message.delivery, "task-revoked", terminated=False, signum=None, expired=False)
    message.must_release = False  # one of the receivers does
    task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)
    raise Ignore


def _is_held_by_same_task(message: Message, held: LockHeld) -> bool:
    """Return whether the task's result is to be stored by the lock's holder, under the same id.

    The holder has another receiver's copy of a broadcast message, or the task id was published
    more than once. An eager execution has a result of its own.
    """
    request = message.request
    return not request.is_eager and task_of(held.owner) == label_of(request.id)


def is_result_ignored(task: Task[Any, Any], request: Context, *, is_error: bool = True) -> bool:
    """Return whether a result of the execution is not to be stored.

    Args:
        task: Task of the execution.
        request: Request of the execution.
        is_error: Whether it is an error, as all endings without a run are.
    """
    if is_error and task.store_errors_even_if_ignored:
        return False
    # The call's value has precedence over the task's; the default of Context means neither.
    given = vars(request).get("ignore_result")
    return bool(task.ignore_result if given is None else given)


def reschedule(
    message: Message, reason: Exception, after: float, slot: Reservation | None
) -> NoReturn:
    """Requeue the message, to run in about `after` seconds; `max_retries` does not apply.

    Args:
        message: Message to requeue.
        reason: Error for which it is requeued.
        after: Delay in seconds.
        slot: Reservation of the pending slot, for the message to carry; None without one.

    Raises:
        Retry: The message is published; the state is RETRY until it runs.
        Ignore: It is published; the state stays ABORTED, for the body to find out.
        Reject: The message could not be published, and the delivered one comes again instead, for a
            task with ``acks_late``. Otherwise the error of Celery.
    """
    task, request, headers = message.task, message.request, slot.header if slot else {}
    try:
        countdown: Any = requeue.requeue_message(
            message.delivery, after, headers, expires=request.expires
        )
    except BaseException:
        # It was not published, whatever the broker's library or a time limit raised. A slot that no
        # message comes back for would block other messages.
        if slot:
            release_reservation(message.redlock, slot)
        message.must_release = not task.acks_late
        raise
    message.must_release = False
    if is_aborted(task, request, states.RETRY):
        # RETRY would replace the state by which the body learns it.
        raise Ignore from reason
    raise Retry(exc=reason, when=countdown) from reason


def is_aborted(task: Task[Any, Any], request: Context, state: str) -> bool:
    """Return whether the task is one of `celery.contrib.abortable`, and aborted.

    Args:
        task: Task of the execution.
        request: Request of the execution.
        state: State that is stored unless the task is aborted.
    """
    if not isinstance(task, AbortableTask):
        return False
    try:
        return bool(task.is_aborted(task_id=str(request.id)))
    except Exception:
        # A result backend may raise anything, and that ends no execution.
        logger.warning(
            "abortion unknown, state replaced task=%s task_id=%s state=%s",
            task.name, shown(request.id), state, exc_info=True,
        )  # fmt: skip
        return False


def park(message: Message, reason: Exception, after: float) -> NoReturn:
    """Park a copy of a message whose first copy is running; the stored result is untouched.

    The copy is requeued as a message of its own. With Redis as broker both copies share one
    delivery tag: acknowledging this copy alone would remove what brings the task back if the first
    copy's worker dies. The requeued message does not expire: the first copy began in time, and
    Celery would store that the task was revoked.
    """
    task, request = message.task, message.request
    try:
        requeue.requeue_message(message.delivery, after, {COPY_HEADER: True}, expires=None)
    except Reject:
        raise
    except Exception:
        # A broker's library may raise anything. Acknowledged early, the copy does not come again if
        # the first copy's process dies.
        logger.warning(
            "copy not parked, its message is acknowledged task=%s task_id=%s",
            task.name,
            shown(request.id),
            exc_info=True,
        )
    raise Ignore from reason


def end_copy(message: Message) -> NoReturn:
    """Discard a copy of a message that another copy handles; the stored result is untouched."""
    logger.info(
        "message handled by another copy, copy discarded key=%s task=%s task_id=%s",
        message.key, message.task.name, shown(message.request.id),
    )  # fmt: skip
    raise Ignore


def leave_to_copy(message: Message) -> NoReturn:
    """Requeue the message of a run that lost its lease to a copy; the stored result is untouched.

    With Redis as broker both copies share one delivery tag: acknowledging the message would remove
    what brings the task back if the copy's worker dies. Requeued, it is a copy like any other,
    which is parked or discarded. Left unanswered, it would count as running while this worker
    lives.
    """
    logger.info(
        "lease lost to a copy, message requeued key=%s task=%s task_id=%s",
        message.key, message.task.name, shown(message.request.id),
    )  # fmt: skip
    raise Reject("another copy of this message runs", requeue=True)


def leave_to_broker(message: Message) -> None:
    """Requeue the message of an execution whose greenlet Celery has killed, unless it is revoked.

    Celery kills greenlets when the worker is shut down or has lost the broker. Then it takes their
    tasks for successful, and acknowledges their messages.

    Raises:
        Reject: The broker delivers the message again, for a task with ``acks_late``.
    """
    task, request = message.task, message.request
    if request.is_eager or not task.acks_late or is_revoked(request):
        return
    logger.info(
        "run cancelled, message requeued key=%s task=%s task_id=%s",
        message.key, task.name, shown(request.id),
    )  # fmt: skip
    raise Reject("the worker cancelled this run", requeue=True)
