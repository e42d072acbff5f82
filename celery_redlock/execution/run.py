"""One execution under its lock: from the lease to its end, however it ends."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject, TaskPredicate

from celery_redlock import signals
from celery_redlock.config.options import LockOptions, OnLost
from celery_redlock.messages.done_marks import mark_to_heed, mark_to_leave
from celery_redlock.messages.headers import is_of, publication_of
from celery_redlock.pools import interrupt, orphaned_leases
from celery_redlock.pools.interrupt import Interrupt
from celery_redlock.pools.pool_process import keeper_client
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost, LockHeld, RedlockError
from celery_redlock.redlock.lease import is_reservation, release_or_warn
from celery_redlock.redlock.lock import DAY_S
from celery_redlock.redlock.task_lock import TaskLock

from .kills import await_outcome, ends_task, is_kill
from .monitors import send_event
from .running import left_to_main

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Successor:
    """Retry to which a run hands its lock over as it ends.

    Attributes:
        owner: Owner of the retry's reservation.
        ttl: Ttl of the retry's reservation, in seconds.
    """

    owner: str
    ttl: float


@dataclass(slots=True, eq=False)
class Run:
    """One run of a task's body under a lease.

    Attributes:
        task: Task that is run.
        request: Request of the execution.
        lease: Lease of the run.
        redlock: Lock that granted the lease.
        options: Options of the task.
        outer: Run whose body called this one; None unless nested.
        successor: Retry that gets the lock when the run ends, or None.
        is_over: Whether the body has ended, so that nothing may interrupt it any more.
        is_struck: Whether the body has been interrupted.
        is_left_to_copy: Whether another copy of the message has taken the lease, and counts.
    """

    task: Task[Any, Any]
    request: Context
    lease: Lease
    redlock: TaskLock
    options: LockOptions
    outer: Run | None = None
    successor: Successor | None = None
    is_over: bool = False
    is_struck: bool = False
    is_left_to_copy: bool = False
    _is_told: bool = False
    _is_ended: bool = False
    _done: str | None = None
    _is_kept_by_main: bool = False
    _interrupt: Interrupt | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start the renewal of the lease."""
        lease, options = self.lease, self.options
        lease.hold_until = lease.acquired_at + self._max_hold()
        client = keeper_client(self.redlock)
        if client:
            self._is_kept_by_main = client.register(
                lease,
                lease.acquired_at + options.min_hold,
                self._mark,
                comes_again=bool(self.task.reject_on_worker_lost),
            )
        if not self._is_kept_by_main:
            self._interrupt = interrupt.new_interrupt()
            self.redlock.keeper.keep(lease, on_lost=self._on_lost)
        signals.lock_acquired.send(sender=self.task, task_id=self.request.id, lease=lease)

    def end(self, raised: BaseException | None) -> None:
        """Release the lock; idempotent, and to be called again after an interrupt.

        Args:
            raised: Exception that the body raised, or None.
        """
        if self._is_ended:
            return
        if not self.is_over:
            self.is_over = True
            self.is_left_to_copy = self._is_left_to_copy(raised)
            self._done = None if self.is_left_to_copy else self._done_mark(raised)
        if self._interrupt:
            self._interrupt.disarm()
        if self._is_kept_by_main and isinstance(raised, SystemExit):
            # This process is about to end. It and its threads may still run for a while, so the
            # main process releases the lock once this process is dead.
            left_to_main.append(self)
        else:
            client = keeper_client()
            if client:
                client.begin_release(self.lease)
            self._release()
            if client:
                client.end_release(self.lease)
        self._is_ended = True
        if self._is_told:
            # Not in `tell_lost`: it may run on the thread that renews the other leases.
            send_event(self.task, self.request, "task-lock-lost", key=self.lease.key)

    def end_after_exit(self) -> None:
        """Release the lock after a SystemExit that the process has survived."""
        self._is_ended = False
        self.end(None)

    def _is_left_to_copy(self, raised: BaseException | None) -> bool:
        """Return whether another copy of the message holds the lost lock, or has run under it.

        False for a run that has published its retry, or has decided what happens to its message.
        """
        request, lease = self.request, self.lease
        is_decided = raised is not None and (
            isinstance(raised, TaskPredicate) or not isinstance(raised, Exception)
        )
        if request.is_eager or is_decided or not lease.lost:
            return False
        try:
            probe = self.redlock.acquire_for_task(
                lease.key,
                lease.ttl_ms / 1000,
                label=request.id,
                publication=publication_of(request),
                # The lock key outlives the deadline on the nodes.
                supersedes=lease.owner,
                unless_done=mark_to_heed(request),
            )
        except AlreadyDone:
            return True
        except LockHeld as held:
            return is_of(held.owner, request) and not is_reservation(held.owner)
        except RedlockError as error:
            logger.warning(
                "holder of the lost lease unknown, no copy assumed key=%s error=%s",
                lease.key,
                error,
            )
            return False
        with contextlib.suppress(RedlockError):
            self.redlock.release(probe, keep=self._keep())
        return False

    def _keep(self) -> float:
        """Return the rest of `lock_min_hold`, in seconds."""
        held_for = self.redlock.clock.now() - self.lease.acquired_at
        return max(0.0, self.options.min_hold - held_for)

    def _release(self) -> None:
        lease = self.lease
        if lease.lost:
            self.tell_lost()
        keep = self._keep()
        if self.successor and self._hand_over(self.successor):
            keep = 0.0
        release_or_warn(
            self.redlock.release,
            lease,
            keep=keep,
            done=self._done,
            done_ttl=orphaned_leases.PROVISIONAL_S,
        )
        signals.lock_released.send(sender=self.task, task_id=self.request.id, lease=lease)

    def _hand_over(self, successor: Successor) -> bool:
        """Return whether `successor` has the lock now; the lease is to be released either way."""
        try:
            self.redlock.reserve(
                self.lease.key,
                successor.ttl,
                label=self.request.id,
                supersedes=self.lease.owner,
                owner=successor.owner,
                # The successor's whole run may overtake this request on its way to a slow node.
                # Granted after that, the reservation would stay for its ttl.
                highest_floor=self.lease.token,
            )
        except RedlockError as error:
            logger.warning(
                "lock not handed over to the retry, lock released key=%s error=%s",
                self.lease.key,
                error,
            )
            return False
        return True

    def settle(self) -> None:
        """Extend the provisional done mark, once Celery has stored the result.

        Until then no copy may be discarded: if this process dies first, a copy has to run.
        """
        if self._done is None:
            return
        struck_by = sys.exc_info()[1]
        if struck_by is None or isinstance(struck_by, Exception):
            self.extend_mark()
        elif is_kill(struck_by):
            await_outcome(self)
        # Otherwise the process was told to exit.

    def extend_mark(self) -> None:
        """Extend the done mark, if one was left."""
        label, self._done = self._done, None
        if label is None:
            return
        try:
            self.redlock.mark_done(self.lease.key, label)
        except RedlockError as error:
            logger.warning(
                "done mark not extended, a copy may run again key=%s error=%s",
                self.lease.key,
                error,
            )

    @property
    def _mark(self) -> str | None:
        return mark_to_leave(self.task, self.request)

    def _done_mark(self, raised: BaseException | None) -> str | None:
        """Return the label of the done mark to leave after the body; None for no mark."""
        if isinstance(raised, Reject):
            return None if getattr(raised, "requeue", False) else self._mark
        # The message of an interrupted run comes again, or its process is about to end.
        is_over = (
            raised is None
            or isinstance(raised, Exception)
            or ends_task(self.task, self.request, raised)
        )
        return self._mark if is_over and not isinstance(raised, LeaseLost) else None

    def _max_hold(self) -> float:
        if self.options.max_hold is not None:
            return self.options.max_hold
        hard, _soft = self.request.timelimit or (None, None)
        # The message's time limit may only lengthen the hold. Not every pool enforces a limit, and
        # the body would outlast a lease that ends early.
        return max(float(self.task.time_limit or DAY_S), float(hard or 0.0))

    def _on_lost(self, _lease: Lease) -> None:
        """Interrupt the body; runs on the keeper's thread, or in a greenlet if the body does."""
        # First, since receivers of the signal may take their time.
        if self.options.on_lost is OnLost.ABORT and self._interrupt and not self.is_over:
            self._interrupt.trigger()
        self.tell_lost()

    def tell_lost(self) -> None:
        """Log once, and signal, that the lease is lost."""
        if self._is_told:
            return
        self._is_told = True
        self.lease.is_lost = True
        logger.error(
            "lease lost under a running task key=%s task=%s task_id=%s on_lost=%s",
            self.lease.key, self.task.name, self.request.id, self.options.on_lost.value,
        )  # fmt: skip
        signals.lock_lost.send(sender=self.task, task_id=self.request.id, lease=self.lease)
