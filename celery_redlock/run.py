"""One execution under its lock: from the lease to its end, however it ends."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject

from . import interrupt, prefork, signals
from .child_end import ChildEnd
from .interrupt import Interrupt
from .options import LockOptions, OnLost
from .redlock import Lease, Redlock
from .redlock.errors import AlreadyDone, LeaseLost, RedlockError
from .redlock.lease import task_of
from .redlock.lock import DAY_S

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
child_end: ChildEnd | None = None
"""In a process of the prefork pool: its way to the keeper in the main process."""


@dataclass(frozen=True, slots=True)
class Successor:
    """The retry to which a run hands its lock over as it ends.

    Attributes:
        owner: Under which that message holds it.
        ttl: For how long, seconds.
    """

    owner: str
    ttl: float


@dataclass(slots=True, eq=False)
class Run:
    """A body that is being run under `lease`.

    Attributes:
        task: Its task.
        request: Its request.
        lease: Its lease.
        redlock: The lock it is of.
        options: Its task's options.
        successor: Who gets the lock when it ends.
        outer: The run in whose body this one is, if it is nested.
        is_over: The body has ended: nothing may interrupt it any more.
        is_struck: It has been interrupted.
    """

    task: Task[Any, Any]
    request: Context
    lease: Lease
    redlock: Redlock
    options: LockOptions
    outer: Run | None = None
    successor: Successor | None = None
    is_over: bool = False
    is_struck: bool = False
    _is_told: bool = False
    _is_ended: bool = False
    _done: str | None = None
    _is_kept_by_main: bool = False
    _interrupt: Interrupt | None = field(default=None, repr=False)

    def begin(self) -> None:
        """Have the lease renewed from now on."""
        lease, options = self.lease, self.options
        lease.hold_until = lease.acquired_at + self._max_hold()
        # Another app's task may run in the body of ours: its lock may be on other nodes.
        if child_end is not None and child_end.redlock is self.redlock:
            self._is_kept_by_main = child_end.take(
                lease,
                lease.acquired_at + options.min_hold,
                self._mark,
                comes_again=bool(self.task.reject_on_worker_lost),
            )
        if not self._is_kept_by_main:
            self._interrupt = interrupt.here()
            lease.on_lost = self._on_lost
            self.redlock.keeper.keep(lease)
        signals.lock_acquired.send(sender=self.task, task_id=self.request.id, lease=lease)

    def end(self, raised: BaseException | None) -> None:
        """Give the lock back. May be called again, as it must be when it was interrupted.

        Args:
            raised: What the body raised, if anything.
        """
        if self._is_ended:
            return
        if not self.is_over:
            self.is_over = True
            self._done = self._done_mark(raised)
        if self._interrupt:
            self._interrupt.disarm()
        if self._is_kept_by_main and isinstance(raised, SystemExit):
            # This process is about to end. It may still run for a while, and what it started with
            # it: the main process releases the lock when it is really dead.
            _left_to_main.append(self)
        else:
            if child_end is not None:
                child_end.begin_to_give_back(self.lease)
            self._release()
            if child_end is not None:
                child_end.give_back(self.lease)
        self._is_ended = True

    def end_after_all(self) -> None:
        """Give the lock back though the body ended by SystemExit."""
        self._is_ended = False
        self.end(None)

    def _release(self) -> None:
        lease = self.lease
        if lease.lost:
            self.tell_lost()
        keep = self.options.min_hold - (self.redlock.clock.now() - lease.acquired_at)
        if self.successor and self._hand_over(self.successor):
            keep = 0.0
        try:
            self.redlock.release(
                lease, keep=max(0.0, keep), done=self._done, done_ttl=prefork.PROVISIONAL_S
            )
        except RedlockError as error:
            # The work is done; what is left of the lock ends with its ttl.
            logger.warning("lock not released key=%s error=%s", lease.key, error)
        signals.lock_released.send(sender=self.task, task_id=self.request.id, lease=lease)

    def _hand_over(self, successor: Successor) -> bool:
        """Tell whether `successor` has the lock now. Whether or not, it is to be released."""
        try:
            self.redlock.reserve(
                self.lease.key,
                successor.ttl,
                label=self.request.id,
                supersedes=self.lease.owner,
                owner=successor.owner,
                # On its way to a slow node this may be overtaken by the successor's whole run:
                # granted after that, it would stand there for its ttl.
                highest_floor=self.lease.token,
            )
        except RedlockError as error:
            logger.warning("lock not handed over key=%s error=%s", self.lease.key, error)
            return False
        return True

    def settle(self) -> None:
        """Make the done mark last: Celery has stored the result, and published what comes next.

        Until then a copy must not end for it. Should this process die first, the copy is what
        brings the task to its end.
        """
        struck_by = sys.exc_info()[0]
        is_told_to_exit = struck_by is not None and not issubclass(struck_by, Exception)
        label, self._done = self._done, None
        if label is None or is_told_to_exit:
            return
        try:
            self.redlock.mark_done(self.lease.key, label)
        except RedlockError as error:
            logger.warning("done mark not kept key=%s error=%s", self.lease.key, error)

    @property
    def _mark(self) -> str | None:
        """The mark for a second copy of this message, if there can be one."""
        request = self.request
        is_wanted = self.task.acks_late or request.eta or may_have_copy(request)
        return done_label(request) if is_wanted and not request.is_eager else None

    def _done_mark(self, raised: BaseException | None) -> str | None:
        """Return the mark to leave behind, now that the body has ended."""
        if isinstance(raised, Reject):
            return None if getattr(raised, "requeue", False) else self._mark
        # The message of one that was interrupted comes again, or its process is about to end.
        is_over = raised is None or isinstance(raised, Exception)
        return self._mark if is_over and not isinstance(raised, LeaseLost) else None

    def _max_hold(self) -> float:
        if self.options.max_hold is not None:
            return self.options.max_hold
        hard, _soft = self.request.timelimit or (None, None)
        return float(hard or self.task.time_limit or DAY_S)

    def _on_lost(self, _lease: Lease) -> None:
        """On the keeper's thread, where it is in this process; in a greenlet, if the body is."""
        # First, since receivers of the signal may take their time.
        if self.options.on_lost is OnLost.ABORT and self._interrupt and not self.is_over:
            self._interrupt.strike()
        self.tell_lost()

    def tell_lost(self) -> None:
        """Say, once, that the lease is lost."""
        if self._is_told:
            return
        self._is_told = True
        self.lease.is_lost = True
        logger.error(
            "lease lost under a running task key=%s task=%s task_id=%s on_lost=%s",
            self.lease.key, self.task.name, self.request.id, self.options.on_lost.value,
        )  # fmt: skip
        signals.lock_lost.send(sender=self.task, task_id=self.request.id, lease=self.lease)


_left_to_main: list[Run] = []
"""Runs of this pool process that ended by SystemExit."""


def give_back_after_all() -> None:
    """Give back what was left to the main process: this process has survived the SystemExit."""
    while _left_to_main:
        _left_to_main.pop().end_after_all()


current: ContextVar[Run | None] = ContextVar("celery_redlock_run", default=None)
"""The innermost run of the calling code."""


def current_lease() -> Lease | None:
    """Return the lease under which the calling code runs, or None outside a singleton task."""
    run = current.get()
    return run.lease if run else None


def strike_current() -> bool:
    """In the signal handler: raise LeaseLost if what runs here has lost its lease.

    Returns:
        Whether the signal was about a run here.
    """
    run = current.get()
    while run is not None:
        if not (run.is_over or run.is_struck) and run.lease.lost:
            run.is_struck = True
            run.tell_lost()
            if run.options.on_lost is OnLost.ABORT:
                raise LeaseLost(run.lease.key)
            return True
        run = run.outer
    return False


def is_of(owner: str | None, request: Context) -> bool:
    """Tell whether `owner` is that of this very task, be it of another execution."""
    # Celery takes any object for an id that its serializer takes, a UUID as well.
    return task_of(owner) == str(request.id)


def is_redelivered(request: Context) -> bool:
    """Tell whether this very message was delivered before."""
    return bool((request.delivery_info or {}).get("redelivered"))


def is_copy(request: Context) -> bool:
    """Tell whether this message was delivered before, or put off because its first copy ran."""
    return is_redelivered(request) or COPY_HEADER in (request.headers or {})


def may_have_copy(request: Context) -> bool:
    """Tell whether there is or was another copy of this message, as far as the message tells.

    It is one itself, or a tick of beat's, which may have been published twice.
    """
    return is_copy(request) or TICK_HEADER in (request.headers or {})


TICK_HEADER = "redlock_tick"
"""Marks a message that beat published, with the moment that its tick is for, in ISO 8601."""
COPY_HEADER = "redlock_copy"
"""Marks a message that was put off because its first copy was running."""

SERIALIZER = "redlock_serializer"
"""The attribute of a request that names what its message was serialized with."""


def heeds_mark(request: Context) -> bool:
    """Tell whether a done mark ends this execution: whether a copy of its message may have run.

    That may be so at the first delivery, too: while this copy waited in a worker for its eta, or
    for a free process, the broker took it for lost, and another worker was faster. Not after the
    message was a dead letter: it is somebody's will that it runs again.
    """
    if request.is_eager:
        return False
    return may_have_copy(request) or "x-death" not in (request.headers or {})


def is_provisional(done: AlreadyDone) -> bool:
    """Tell whether it is not certain yet that what left this mark has come to its end."""
    return done.remaining <= prefork.PROVISIONAL_S


def done_label(request: Context) -> str:
    """Return what one message's done mark is called: a retry or replacement is another message."""
    nesting = request.replaced_task_nesting
    return f"{request.id}/{request.retries}" + (f"/{nesting}" if nesting else "")
