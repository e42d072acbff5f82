"""One execution of a task: what it needs before its body runs, and what becomes of it without."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from . import conflict, publish
from .line import PAUSE_S, Line
from .options import Lifetime, LockOptions, OnConflict, OnUnavailable
from .publish import Reservation, next_in_line
from .redlock import Lease, Redlock
from .redlock.errors import AlreadyDone, LeaseLost, LockHeld, QuorumUnavailable, RedlockError
from .redlock.lease import is_reservation
from .run import (
    Run,
    current,
    done_label,
    heeds_mark,
    is_copy,
    is_of,
    is_provisional,
    is_redelivered,
    may_have_copy,
)

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_OWN_EARLIER_RUN_S = 1.0
"""How long a message waits for its own earlier run, which is ending, to give its lock back.

Milliseconds after a retry; half a second when the process that ran it is being terminated.
"""
_PLACE_TTL_S = 60.0
"""How long a place in line outlives a message that never comes back for it."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A message that is being executed.

    Attributes:
        task: Its task.
        request: Its request.
        redlock: The lock.
        options: Its task's options.
        name: Of its lock.
        body: Runs the task's body, under the given lease or without.
    """

    task: Task[Any, Any]
    request: Context
    redlock: Redlock
    options: LockOptions
    name: str
    body: Callable[[Lease | None], Any]

    def perform(self) -> Any:
        """Run the body as the task's lifetime demands, or end as its policies say."""
        # From here on, what the message has reserved is taken up, or given back here.
        self.request.redlock_run = None  # type: ignore[attr-defined]
        try:
            entered = self._enter()
        except AlreadyDone as done:
            return self._on_done(done)
        except LockHeld as held:
            return self._on_conflict(held)
        except QuorumUnavailable as error:
            return self._on_unavailable(error)
        except BaseException:
            # A time limit struck while it waited for the lock.
            self._give_up_reservation()
            raise
        if isinstance(entered, Lease):
            return self._run(entered)
        try:
            return self.body(None)
        finally:
            if entered:
                publish.give_back(self.redlock, entered)

    # ---- before the body

    @property
    def _reservation(self) -> Reservation | None:
        return publish.reservation_in(self.request.headers)

    def _enter(self) -> Lease | Reservation | None:
        """Take what the lifetime wants to be held while the body runs; None for nothing.

        A reservation is held because it could not be ended.
        """
        match self.options.lifetime:
            case Lifetime.UNTIL_EXECUTING:
                return self._end_reservation()
            case Lifetime.UNTIL_EXPIRED:
                self._throttle()
                return None
        try:
            lease = self._acquire()
        except AlreadyDone as done:
            # Another copy has run. But whoever was turned away since, because this one waits,
            # relies on one more run.
            if is_provisional(done) or not self._line.leave():
                raise
            return self._acquire(heeds_done=False)
        try:
            if self._is_newcomer:
                self._let_go_ahead()
            stood = self._line.leave()
        except BaseException:  # a time limit may strike, too
            self.redlock.release(lease)
            raise
        if self._line.place and self.options.lifetime is Lifetime.UNTIL_AND_WHILE_EXECUTING:
            self._note(self._line.place, stood=stood)
        reservation = self._reservation
        if reservation and reservation.key not in (self.name, next_in_line(self.name)):
            # Its lock has another name here: the task has changed since it was published, or what
            # `lock_key` returns depends on where it is asked.
            publish.give_back(self.redlock, reservation)
        return lease

    @property
    def _is_newcomer(self) -> bool:
        """Whether it comes for the first time, and others may wait in line."""
        options, request = self.options, self.request
        return (
            options.on_conflict is OnConflict.COALESCE
            and options.lifetime is Lifetime.WHILE_EXECUTING
            and self._line.place is None
            and not (request.is_eager or is_copy(request) or self._is_successor)
        )

    def _let_go_ahead(self) -> None:
        """Turn this message away if another one waits in line, whose run will see as much.

        Of a long queue each message would run otherwise that happens to find the lock free, while
        the one that waits is on its way back.

        Raises:
            LockHeld: There is one.
            QuorumUnavailable: Fewer nodes than a quorum could tell.
        """
        try:
            place = self._line.keep()
        except LockHeld as waiting:
            if not waiting.contended:
                raise
        else:
            self.redlock.drop(place.key, place.owner)

    def _end_reservation(self) -> Reservation | None:
        """End it; return it if that can't be done now."""
        reservation = self._reservation
        if reservation is None:
            # Not published by us. If another message is waiting, this one is its duplicate.
            self.redlock.release(self._acquire())
            return None
        try:
            stood = self.redlock.drop(reservation.key, reservation.owner)
        except QuorumUnavailable as error:
            logger.warning("reservation not ended key=%s error=%s", reservation.key, error)
            return reservation
        self._note(reservation, stood=stood)
        return None

    def _throttle(self) -> None:
        if self._reservation:
            return
        try:
            self.redlock.reserve(self.name, self.options.ttl, label=self.request.id)
        except LockHeld as held:
            # Its own, from an earlier delivery or the run that retries.
            if not is_of(held.holder, self.request):
                raise

    def _acquire(self, *, heeds_done: bool = True) -> Lease:
        request, options, reservation = self.request, self.options, self._reservation
        is_holding = reservation is not None and reservation.key == self.name
        acquire = partial(
            self.redlock.acquire,
            self.name,
            options.ttl,
            label=request.id,
            supersedes=reservation.owner if reservation and is_holding else None,
            unless_done=done_label(request) if heeds_done and heeds_mark(request) else None,
        )
        try:
            lease = acquire()
        except LockHeld as held:
            again = self._second_attempt(held, is_holding=is_holding)
            if again is None:
                raise
            lease = acquire(**again)
        if reservation and is_holding:
            self._note(reservation, stood=lease.took_over)
        return lease

    def _second_attempt(self, held: LockHeld, *, is_holding: bool) -> dict[str, Any] | None:
        """Return how to ask again for a lock that is held, or None if that is of no use.

        Args:
            held: By whom.
            is_holding: Whether this message had it reserved.
        """
        request = self.request
        is_own = is_of(held.holder, request)
        if is_reservation(held.holder) and (is_own or is_holding):
            # Nothing runs. It is an earlier try to publish this very message, or ours has expired
            # and a later message has one: in a queue that is slower than a reservation lasts, each
            # would give way to the next, and none would run.
            return {"supersedes": held.holder, "wait": self._longest_wait}
        if is_own and not request.is_eager:
            # A retry's message can arrive before the run that sent it has unwound, and one that
            # Celery puts back before the process that ran it is dead. Parked, it would come back
            # when the lease might have ended: after a whole ttl.
            is_after_it = self._is_successor or is_redelivered(request)
            return {"wait": _OWN_EARLIER_RUN_S} if is_after_it else None
        return {"wait": self._longest_wait} if self._longest_wait else None

    @property
    def _is_successor(self) -> bool:
        """Whether a run of this very task has sent the message: a retry, or a replacement."""
        return bool(self.request.retries or self.request.replaced_task_nesting)

    @property
    def _longest_wait(self) -> float:
        if self.options.on_conflict is OnConflict.WAIT:
            return math.inf if self.options.wait is None else self.options.wait
        # In an eager execution there is no queue to go back to.
        return self.options.ttl if self.request.is_eager and self._goes_back else 0.0

    @property
    def _goes_back(self) -> bool:
        return self.options.on_conflict in (OnConflict.RESCHEDULE, OnConflict.COALESCE)

    def _note(self, reservation: Reservation, *, stood: bool) -> None:
        is_first = not self.request.retries and not may_have_copy(self.request)
        if not stood and is_first:
            logger.warning(
                "reservation expired in the queue, the task is run all the same key=%s task_id=%s",
                reservation.key, self.request.id,
            )  # fmt: skip

    # ---- the body

    def _run(self, lease: Lease) -> Any:
        run = Run(self.task, self.request, lease, self.redlock, self.options, outer=current.get())
        # Found there by task_postrun, should what follows be interrupted.
        self.request.redlock_run = run  # type: ignore[attr-defined]
        raised: BaseException | None = None
        entered = current.set(run)
        try:
            run.begin()
            return self.body(lease)
        except LeaseLost as lost:
            raised = lost
            if not lost.key:
                raised = LeaseLost(lease.key)
                raise raised from lost
            raise
        except BaseException as error:
            raised = error
            raise
        finally:
            # Here and not in a signal: before Celery publishes the chain's next step or stores the
            # result, either of which may bring the next run of this very key.
            try:
                run.end(raised)
            finally:
                current.reset(entered)

    # ---- instead of the body

    def _on_done(self, done: AlreadyDone) -> Any:
        if is_provisional(done):
            conflict.park(self.task, self.request, done, done.remaining)
        # A tick that beat published twice has one of its own.
        self._give_up_reservation()
        return conflict.end_copy(self.task, self.request, self.name)

    def _on_conflict(self, held: LockHeld) -> Any:
        task, request, policy = self.task, self.request, self.options.on_conflict
        is_next = held.key == next_in_line(self.name)
        if is_of(held.holder, request) and not (is_next or request.is_eager):
            conflict.announce(task, request, held, "parked")
            conflict.park(task, request, held, held.remaining)
        # Contended: nobody is known to run, so this one may not be dropped.
        if held.contended and policy is not OnConflict.RAISE:
            policy = OnConflict.RESCHEDULE
        if policy is OnConflict.COALESCE and not request.is_eager:
            return self._coalesce(held)
        if policy is OnConflict.WAIT:
            # It did, in vain.
            policy = OnConflict.SKIP
        conflict.announce(task, request, held, policy.value)
        if policy is OnConflict.RESCHEDULE and not request.is_eager:
            # A reservation lasts far longer than a lease, and says nothing of when it is taken up.
            pause = min(held.remaining, self.options.ttl)
            conflict.reschedule(task, request, held, pause, self._renewed())
        self._give_up_reservation()
        if policy is OnConflict.RAISE:
            raise held
        if policy is OnConflict.COMPLETE:
            return self.options.conflict_result
        return conflict.skip(task, request, held)

    def _coalesce(self, held: LockHeld) -> Any:
        """Wait in the queue for the holder's end, or end because somebody does so already."""
        task, request = self.task, self.request
        try:
            headers = self._line.keep().header
        except QuorumUnavailable as error:
            return self._on_unavailable(error)
        except LockHeld as waiting:
            if is_of(waiting.holder, request):
                return conflict.end_copy(task, request, self.name)
            if not waiting.contended:
                conflict.announce(task, request, waiting, OnConflict.SKIP.value)
                return conflict.skip(task, request, waiting)
            headers = {}
        conflict.announce(task, request, held, OnConflict.COALESCE.value)
        return conflict.reschedule(task, request, held, min(held.remaining, PAUSE_S), headers)

    @property
    def _line(self) -> Line:
        is_kept_in_queue = self.options.lifetime is Lifetime.UNTIL_AND_WHILE_EXECUTING
        ttl = self.options.queue_ttl if is_kept_in_queue else _PLACE_TTL_S
        return Line(self.redlock, self.name, self.request, ttl)

    def _renewed(self) -> dict[str, Any]:
        """Return the headers for a message that goes back to the queue: its place is kept."""
        line = self._line
        try:
            return line.keep().header if line.place else {}
        except LockHeld:
            return {}
        except RedlockError as error:
            logger.warning("place in line not kept key=%s error=%s", self.name, error)
            return {}

    def _give_up_reservation(self) -> None:
        if self._reservation and self.options.lifetime is not Lifetime.UNTIL_EXPIRED:
            publish.give_back(self.redlock, self._reservation)

    def _on_unavailable(self, error: QuorumUnavailable) -> Any:
        policy = self.options.on_unavailable
        is_parked = is_copy(self.request) and policy is not OnUnavailable.RUN
        becomes = "parked" if is_parked else policy.value
        conflict.announce_unavailable(self.task, self.request, error, becomes)
        if is_parked:
            # Its first copy may be running, or have ended: neither is known.
            conflict.park(self.task, self.request, error, conflict.NO_QUORUM_PAUSE_S)
        if policy is OnUnavailable.RUN or policy is OnUnavailable.RAISE or self.request.is_eager:
            self._give_up_reservation()
            if policy is OnUnavailable.RUN:
                return self.body(None)
            raise error
        return conflict.reschedule(
            self.task, self.request, error, conflict.NO_QUORUM_PAUSE_S, self._renewed()
        )
