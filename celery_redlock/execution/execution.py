"""Execution of one message, from its lock to its outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, TaskRevokedError

from celery_redlock.messages.requeue import enforce_max_deliveries
from celery_redlock.pools.interrupt import is_greenlet_exit
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost, LockHeld, QuorumUnavailable

from . import outcomes
from .attempt import discard_grant
from .entry import enter
from .message import Message
from .run import Run
from .running import began_without_lease, current, executions


def execute(message: Message, *, max_deliveries: int = 0) -> Any:
    """Run the body of a message under its lock, or end the execution by the task's policies.

    Args:
        message: Message to execute.
        max_deliveries: How often the message may be delivered again; 0: any number of times.
    """
    try:
        try:
            # From here on, this function releases the reservation, or a lease supersedes it.
            executions[message.request] = None
            enforce_max_deliveries(message.delivery, max_deliveries)
            lease = enter(message)
        except (AlreadyDone, LockHeld, QuorumUnavailable) as refused:
            if not outcomes.conclude(message, refused):
                return message.options.conflict_result
            lease = None
        except TaskRevokedError:
            outcomes.end_revoked(message)
        except (Ignore, Reject) as ending:
            # Requeued with its reservation, or delivered too often.
            message.must_release = isinstance(ending, Reject) and not ending.requeue  # type: ignore[attr-defined]
            raise
        if lease:
            return _run(message, lease)
        began_without_lease.send(sender=message.task, key=message.key)
        return message.body(None)
    except BaseException as error:
        if message.owner and executions.get(message.request) is None:
            # Interrupted between the grant and the run that would release it.
            discard_grant(message)
        if is_greenlet_exit(error):
            outcomes.leave_to_broker(message)
        raise
    finally:
        if message.must_release:
            # After the body, or after a time limit during the wait for the lock.
            _insist(message.release_reservation)


def _run(message: Message, lease: Lease) -> Any:
    """Run the body under its lease, and release the lock when it ends."""
    outer = current.get()
    run = Run(message, lease, outer)
    # Where task_postrun finds the run if the code below is interrupted.
    executions[message.request] = run
    raised: BaseException | None = None
    entered = current.set(run)
    try:
        run.begin()
        return message.body(lease)
    except BaseException as error:
        raised = error
        if ended_by := run.error_of_end(error):
            raised = ended_by
            raise ended_by from error
        if isinstance(error, LeaseLost) and error.key in ("", lease.key):
            why = run.why_dropped()
            if why or not error.key:
                raised = LeaseLost(lease.key, why or error.reason)
                raise raised from error
        raise
    finally:
        # A signal would be too late: Celery then publishes the chain's next step or stores the
        # result, either of which may start the next run of this key.
        try:
            _insist(run.end, raised)
        finally:
            current.reset(entered)
        if run.is_superseded_by_copy:
            outcomes.leave_to_copy(message)


def _insist(release: Callable[..., object], *args: object) -> None:
    """Release, also if a time limit strikes in it: once more, before Celery stores that.

    Raises:
        Exception: The interrupt.
    """
    try:
        release(*args)
    except Exception:
        release(*args)
        raise
