"""One execution under its lock: from the lease to its end, however it ends."""

from __future__ import annotations

import contextlib
import logging
import sys
from dataclasses import dataclass, field

from celery.exceptions import Ignore, Reject, Retry, TaskPredicate
from celery.utils.dispatch import Signal

from celery_redlock import signals
from celery_redlock.config.options import OnLost
from celery_redlock.pools import interrupt, orphaned_leases
from celery_redlock.pools.interrupt import Interrupt
from celery_redlock.pools.pool_process import keeper_client
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost, LockHeld, RedlockError, shown
from celery_redlock.redlock.lease import is_reservation, new_owner, release_or_warn
from celery_redlock.redlock.lock import DAY_S

from .kills import await_outcome, ends_task, is_kill
from .message import Message
from .monitors import send_event
from .running import deferred_to_main

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
        message: Message that is executed.
        lease: Lease of the run.
        outer: Run whose body called this one; None unless nested.
        successor: Retry that gets the lock when the run ends, or None.
        is_over: Whether the body has ended, so that nothing may interrupt it any more.
        is_interrupted: Whether the body has been interrupted.
        is_superseded_by_copy: Whether another copy of the message has taken the lease, and counts.
        ended_by: Error with which an operator has ended the run; None: nobody has.
    """

    message: Message
    lease: Lease
    outer: Run | None = None
    successor: Successor | None = None
    is_over: bool = False
    is_interrupted: bool = False
    is_superseded_by_copy: bool = False
    ended_by: LeaseLost | None = None
    _is_told: bool = False
    _is_asked: bool = False
    _why_dropped: str | None = None
    _is_ended: bool = False
    _done: str | None = None
    _is_kept_by_main: bool = False
    _interrupt: Interrupt | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Start the renewal of the lease."""
        lease, options = self.lease, self.message.options
        lease.hold_until = lease.acquired_at + self._max_hold()
        client = keeper_client(self.message.redlock)
        if client:
            self._is_kept_by_main = client.register(
                lease,
                lease.acquired_at + options.min_hold,
                self.message.delivery.mark_to_leave,
                will_be_redelivered=bool(self.message.task.reject_on_worker_lost),
                successor=self._successor_if_lost(),
            )
        if not self._is_kept_by_main:
            self._interrupt = interrupt.new_interrupt()
            self.message.redlock.keeper.keep(lease, on_lost=self._on_lost)
        self._send(signals.lock_acquired)

    def end(self, raised: BaseException | None) -> None:
        """Release the lock; idempotent, and to be called again after an interrupt.

        Args:
            raised: Exception that the body raised, or None.
        """
        if self._is_ended:
            return
        was_over, self.is_over = self.is_over, True
        is_lost = self.lease.lost
        if not was_over:
            self.is_superseded_by_copy = is_lost and self._is_superseded_by_copy(raised)
            self._done = None if self.is_superseded_by_copy else self._done_mark(raised)
        if self._interrupt:
            self._interrupt.disarm()
        if self._is_kept_by_main and isinstance(raised, SystemExit):
            # This process is about to end. It and its threads may still run for a while, so the
            # main process releases the lock once this process is dead.
            deferred_to_main.append(self)
        else:
            client = keeper_client()
            if client:
                client.begin_release(self.lease)
            is_confirmed = self._release(is_lost=is_lost)
            if client and is_confirmed:
                client.end_release(self.lease)
            elif client:
                # This process tries again, but may end before a quorum has confirmed it.
                now = self.message.redlock.clock.now()
                delayed_until = self.lease.delayed_until(now) if is_lost else 0.0
                kept_until = max(now + self._keep(), delayed_until)
                client.leave_release(self.lease, kept_until, self._done)
        self._is_ended = True
        if self._is_told:
            # `report_loss` may run on the thread that renews the other leases.
            send_event(self.message.delivery, "task-lock-lost", key=self.lease.key)

    def hand_over_to(self, owner: str, ttl: float) -> None:
        """Have the lock handed over to a retry of the run as the run ends.

        Args:
            owner: Owner of the retry's reservation.
            ttl: Ttl of the retry's reservation, in seconds.
        """
        self.successor = Successor(owner, ttl)

    def abort(self, why: str) -> bool:
        """Have LeaseLost raised in the body, for the run to end for good; called by others.

        The lease is renewed until the body has ended.

        Args:
            why: Who ends the run, and why.

        Returns:
            False: The body has ended, or nothing can interrupt it.
        """
        if self.is_over or self._interrupt is None:
            return False
        self.ended_by = LeaseLost(self.lease.key, f"its run was ended by {why}")
        self._interrupt.trigger(self.ended_by)
        return True

    def error_of_end(self, raised: BaseException) -> LeaseLost | None:
        """Return the error that counts instead of what the body raised; None: that counts.

        A run that an operator has ended fails, whatever its body makes of the interrupt. But a
        retry that is published, or a task that has replaced itself, stays so.
        """
        is_published = isinstance(raised, (Ignore, Retry))
        return self.ended_by if isinstance(raised, Exception) and not is_published else None

    def why_dropped(self) -> str | None:
        """Return who has released the lost lease, and log it once; None: nobody is known to."""
        if not self.lease.lost or self._is_asked:
            return self._why_dropped
        self._is_asked = True
        self._why_dropped = self.message.redlock.why_dropped(self.lease)
        if self._why_dropped:
            logger.error(
                "lock of the run was released by others key=%s task=%s task_id=%s reason=%s",
                self.lease.key, self.message.task.name, shown(self.message.request.id),
                self._why_dropped,
            )  # fmt: skip
        return self._why_dropped

    def end_after_exit(self) -> None:
        """Release the lock after a SystemExit that the process has survived."""
        self._is_ended = False
        self.end(None)

    def _is_superseded_by_copy(self, raised: BaseException | None) -> bool:
        """Return whether another copy of the message holds the lost lock, or has run under it.

        False for a run that has published its retry, or has decided what happens to its message.
        """
        delivery, lease = self.message.delivery, self.lease
        is_decided = raised is not None and (
            isinstance(raised, TaskPredicate) or not isinstance(raised, Exception)
        )
        if delivery.request.is_eager or is_decided:
            return False
        if (now := self.message.redlock.clock.now()) < lease.delayed_until(now):
            return False  # the lock is still on the nodes, and a probe would end the delay
        try:
            probe = self.message.redlock.acquire_for_task(
                lease.key,
                lease.ttl_ms / 1000,
                label=delivery.request.id,
                publication=delivery.publication,
                # The lock key outlives the deadline on the nodes.
                supersedes=lease.owner,
                unless_done=delivery.marks_to_check[:1],
            )
        except AlreadyDone:
            return True
        except LockHeld as held:
            return delivery.has_owner(held.owner) and not is_reservation(held.owner)
        except RedlockError as error:
            logger.warning(
                "holder of the lost lease unknown, no copy assumed key=%s error=%s",
                lease.key,
                error,
            )
            return False
        with contextlib.suppress(RedlockError):
            self.message.redlock.release(probe, keep=self._keep())
        return False

    def _keep(self) -> float:
        """Return the rest of `lock_min_hold`, in seconds."""
        held_for = self.message.redlock.clock.now() - self.lease.acquired_at
        return max(0.0, self.message.options.min_hold - held_for)

    def _release(self, *, is_lost: bool) -> bool:
        """Release the lock, or hand it over; return whether a quorum has confirmed the release."""
        lease = self.lease
        if is_lost:
            self.report_loss()
            self.why_dropped()
        keep = self._keep()
        if self.successor and self._hand_over(self.successor):
            keep = 0.0
        is_confirmed = release_or_warn(
            self.message.redlock.release,
            lease,
            keep=keep,
            done=self._done,
            done_ttl=orphaned_leases.PROVISIONAL_S,
        )
        self._send(signals.lock_released)
        return is_confirmed

    def _hand_over(self, successor: Successor) -> bool:
        """Return whether `successor` has the lock now; the lease is to be released either way."""
        if (now := self.message.redlock.clock.now()) < self.lease.delayed_until(now):
            # Nobody may follow yet: neither the retry, nor others once that has run.
            logger.info(
                "lock not handed over to the retry, lock delay is not over key=%s task_id=%s",
                self.lease.key, shown(self.message.request.id),
            )  # fmt: skip
            return False
        try:
            self.message.redlock.reserve(
                self.lease.key,
                successor.ttl,
                label=self.message.request.id,
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
        interrupted_by = sys.exc_info()[1]
        if _requeues(interrupted_by):
            # A hook of the task rejected it after its body: the message comes again, and runs.
            return
        if interrupted_by is None or isinstance(interrupted_by, Exception):
            self._extend_mark()
        elif is_kill(interrupted_by):
            await_outcome(str(self.message.request.id), self._extend_mark)
        # Otherwise the process was told to exit.

    def _extend_mark(self) -> None:
        label, self._done = self._done, None
        if label is None:
            return
        try:
            self.message.redlock.mark_done(self.lease.key, label)
        except RedlockError as error:
            logger.warning(
                "done mark not extended, a copy may run again key=%s error=%s",
                self.lease.key,
                error,
            )

    def _done_mark(self, raised: BaseException | None) -> str | None:
        """Return the label of the done mark to leave after the body; None for no mark."""
        mark = self.message.delivery.mark_to_leave
        if isinstance(raised, Reject):
            return None if _requeues(raised) else mark
        # The message of an interrupted run comes again, or its process is about to end.
        is_over = (
            raised is None
            or isinstance(raised, Exception)
            or ends_task(self.message.delivery, raised)
        )
        comes_again = isinstance(raised, LeaseLost) and raised is not self.ended_by
        return mark if is_over and not comes_again else None

    def _successor_if_lost(self) -> str:
        """Return the owner for the retry that Celery publishes if this process dies; '': none.

        The retry gets a reservation with another owner as it is published. Until then, which may
        take Celery seconds, this one keeps the lock.
        """
        if not self.message.options.lifetime.holds_across_retries:
            return ""
        delivery = self.message.delivery
        task, request = delivery.task, delivery.request
        is_retried = getattr(task, "retry_on_worker_lost", False) and (
            task.max_retries is None or (request.retries or 0) < task.max_retries
        )
        if not is_retried:
            return ""
        return new_owner(str(request.id), publication=delivery.publication, is_reservation=True)

    def _max_hold(self) -> float:
        if self.message.options.max_hold is not None:
            return self.message.options.max_hold
        hard, _soft = self.message.request.timelimit or (None, None)
        # The message's time limit may only lengthen the hold. Not every pool enforces a limit, and
        # the body would outlast a lease that ends early.
        return max(float(self.message.task.time_limit or DAY_S), float(hard or 0.0))

    def _send(self, signal: Signal) -> None:
        if signal.receivers:
            task, request = self.message.task, self.message.request
            signal.send(sender=task, task_id=request.id, lease=self.lease)

    def _on_lost(self, _lease: Lease) -> None:
        """Interrupt the body; runs on the keeper's thread, or in a greenlet if the body does."""
        # The interrupt comes first, since receivers of the signal may take their time.
        if self.message.options.on_lost is OnLost.ABORT and self._interrupt and not self.is_over:
            self._interrupt.trigger()
        self.report_loss()

    def report_loss(self) -> None:
        """Log once, and signal, that the lease is lost."""
        if self._is_told:
            return
        self._is_told = True
        self.lease.backing.is_lost = True
        logger.error(
            "lease lost under a running task key=%s task=%s task_id=%s on_lost=%s",
            self.lease.key, self.message.task.name, shown(self.message.request.id),
            self.message.options.on_lost.value,
        )  # fmt: skip
        self._send(signals.lock_lost)


def _requeues(raised: BaseException | None) -> bool:
    """Return whether an exception has the broker deliver the message again."""
    return isinstance(raised, Reject) and bool(getattr(raised, "requeue", False))
