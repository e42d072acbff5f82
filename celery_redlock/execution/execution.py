"""Execution of one message, from its lock to its outcome."""

from __future__ import annotations

from typing import Any, NoReturn

from celery.exceptions import Ignore

from celery_redlock.messages.done_marks import is_provisional, refuse_unwritable
from celery_redlock.messages.requeue import bound_deliveries
from celery_redlock.messages.reservation import release_reservation
from celery_redlock.pools.interrupt import is_greenlet_exit
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost, LockHeld, QuorumUnavailable

from . import no_quorum, outcomes, policies
from .attempt import Attempt
from .entry import enter
from .message import Message
from .run import Run
from .running import current, executions


def execute(message: Message, *, max_deliveries: int = 0) -> Any:
    """Run the body of a message under its lock, or end the execution by the task's policies.

    Args:
        message: Message to execute.
        max_deliveries: How often the message may be delivered again; 0: any number of times.

    Raises:
        InvalidTaskError: A field of the message can't be stored on a node.
    """
    refuse_unwritable(message.request)
    attempt = Attempt(message)
    try:
        return _execute(attempt, max_deliveries)
    except BaseException as error:
        if attempt.owner and executions.get(message.request) is None:
            # Interrupted between the grant and the run that would release it.
            attempt.discard_grant()
        if is_greenlet_exit(error):
            outcomes.leave_to_broker(message)
        raise


def _execute(attempt: Attempt, max_deliveries: int) -> Any:
    message = attempt.message
    try:
        # From here on, this function releases the reservation, or a lease supersedes it.
        executions[message.request] = None
        bound_deliveries(message.task, message.request, max_deliveries)
        entered = enter(attempt)
    except AlreadyDone as done:
        _end_as_done(message, done)
    except LockHeld as held:
        return policies.apply(message, held)
    except QuorumUnavailable as error:
        return no_quorum.end(message, error)
    except Ignore:
        # The message was requeued, with its reservation.
        raise
    except BaseException as error:
        # A time limit during the wait for the lock, or too many deliveries.
        if not getattr(error, "requeue", False):
            message.release_reservation()
        raise
    if isinstance(entered, Lease):
        return _run(message, entered)
    try:
        return message.body(None)
    finally:
        if entered:
            release_reservation(message.redlock, entered)


def _run(message: Message, lease: Lease) -> Any:
    """Run the body under its lease, and release the lock when it ends."""
    outer = current.get()
    run = Run(message.task, message.request, lease, message.redlock, message.options, outer=outer)
    # Where task_postrun finds the run if the code below is interrupted.
    executions[message.request] = run
    raised: BaseException | None = None
    entered = current.set(run)
    try:
        run.begin()
        return message.body(lease)
    except BaseException as error:
        raised = error
        if isinstance(error, LeaseLost) and not error.key:
            raised = LeaseLost(lease.key)
            raise raised from error
        raise
    finally:
        # Not in a signal: before Celery publishes the chain's next step or stores the result,
        # either of which may start the next run of this key.
        try:
            run.end(raised)
        finally:
            current.reset(entered)
        if run.is_left_to_copy:
            outcomes.leave_to_copy(message)


def _end_as_done(message: Message, done: AlreadyDone) -> NoReturn:
    """Discard a copy of a message that another copy has run; park it if that is provisional."""
    if is_provisional(done):
        outcomes.park(message, done, done.remaining)
    # A tick that beat published twice has a reservation of its own.
    message.release_reservation()
    outcomes.end_copy(message)
