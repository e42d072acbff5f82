"""Attempts to acquire a message's lock: what they supersede, and how long they wait."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_redlock import signals
from celery_redlock.config.options import OnConflict
from celery_redlock.messages.done_marks import done_label_of_retry, mark_to_heed
from celery_redlock.messages.headers import (
    is_copy,
    is_of,
    is_redelivered,
    is_successor,
    publication_of,
)
from celery_redlock.pools.pool_process import announcer, is_shutting_down
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, RedlockError
from celery_redlock.redlock.lease import is_reservation, release_or_warn

from . import no_quorum
from .message import Message
from .running import is_held_by_caller

logger = logging.getLogger(__name__)
_OWN_EARLIER_RUN_S = 1.0
"""How long a message waits for its own earlier run to end and release the lock.

That takes milliseconds after a retry, and half a second if the earlier run's process is being
terminated.
"""


@dataclass(slots=True)
class Attempt:
    """Attempt of a message to acquire its lock.

    Attributes:
        message: Message that is being executed.
        owner: Owner of the last request, until the request has failed or its lease is released.
    """

    message: Message
    owner: str | None = None

    def acquire(self) -> Lease:
        """Return a lease of the message's lock.

        Raises:
            AlreadyDone: Another copy of the message has run.
            LockHeld: Another execution holds the lock, also after the wait, if any.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        request, reservation = self.message.request, self.message.reservation
        is_holding = reservation is not None and reservation.key == self.message.key
        acquire = partial(
            self._ask,
            supersedes=reservation.owner if reservation and is_holding else None,
            is_successor=is_holding and is_successor(request),
            unless_done=mark_to_heed(request),
        )
        try:
            return acquire()
        except LockHeld as held:
            again = self._second_attempt(held, is_holding=is_holding)
            if again is None:
                raise
            with self._announced_wait(held) if again.get("wait") else nullcontext():
                return acquire(**again)

    def unless_retried(self, lease: Lease) -> Lease:
        """Return the lease, or a new one that supersedes it, unless the message's retry has run.

        A run whose retry seems not to be published requeues its message. The retry may have been
        published nevertheless; run after that, the message would store RETRY over its result.

        Raises:
            AlreadyDone: The retry has run, or another copy of the message.
            LockHeld: The lease has expired meanwhile, and another execution holds the lock.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        request = self.message.request
        if not (self.message.task.acks_late and is_copy(request) and mark_to_heed(request)):
            return lease
        try:
            again = self._ask(supersedes=lease.owner, unless_done=done_label_of_retry(request))
        except BaseException:  # also a time limit's; the lease has no run yet to release it
            release_or_warn(self.message.redlock.release, lease)
            raise
        if not lease.lost:
            return again
        # This process stood still between the two. Another copy may have run in the gap.
        self.release(again)
        return self.unless_retried(self.acquire())

    def release(self, lease: Lease) -> None:
        """Release a lease under which no body has run."""
        release_or_warn(self.message.redlock.release, lease)
        self.owner = None

    def discard_grant(self) -> None:
        """Discard the grant of the last request, which no lease represents."""
        message = self.message
        try:
            message.redlock.release_owner(message.key, str(self.owner))
        except RedlockError as error:
            logger.warning(
                "grant not discarded, it expires by its ttl key=%s error=%s", message.key, error
            )

    def _ask(self, *, held: LockHeld | None = None, **how: Any) -> Lease:
        """Acquire the lock, with the owner recorded before each request.

        Args:
            held: Error that ends the wait when the worker is shut down; None to wait on.
            **how: Further arguments of `TaskLock.acquire_for_task`.
        """
        message = self.message
        announce = announcer(message.redlock, message.key, message.options.ttl)

        def end_wait_in_shutdown() -> None:
            if held and is_shutting_down():
                raise held

        def record(owner: str) -> None:
            end_wait_in_shutdown()
            self.owner = owner
            if announce:
                announce(owner)

        try:
            lease = message.redlock.acquire_for_task(
                message.key,
                message.options.ttl,
                label=message.request.id,
                publication=publication_of(message.request),
                on_attempt=record,
                on_wait=end_wait_in_shutdown,
                **how,
            )
        except RedlockError:
            self.owner = None  # a failed acquisition leaves no grant
            raise
        no_quorum.announce_over()
        return lease

    @contextmanager
    def _announced_wait(self, held: LockHeld) -> Iterator[None]:
        """Send to signal receivers that the block waits for a lock, and for how long it did."""
        message, now = self.message, self.message.redlock.clock.now
        about: dict[str, Any] = {"sender": message.task, "task_id": message.request.id}
        signals.lock_wait_began.send(error=held, **about)
        began = now()
        try:
            yield
        finally:
            signals.lock_wait_ended.send(waited=now() - began, **about)

    def _second_attempt(self, held: LockHeld, *, is_holding: bool) -> dict[str, Any] | None:
        """Return the arguments of a second request, or None if it would fail as well.

        Args:
            held: Error of the first request.
            is_holding: Whether this message carries a reservation of the key.
        """
        request = self.message.request
        is_own = is_of(held.owner, request)
        if is_reservation(held.owner) and (is_own or is_holding):
            # Nothing runs. The holder is an earlier attempt to publish this message, or a later
            # message that reserved the key after this one's reservation expired. In a queue slower
            # than a reservation's ttl each message would yield to the next, and none would run.
            return {"supersedes": held.owner, "wait": self._longest_wait}
        if is_own and not request.is_eager:
            # A retry can arrive before the run that published it has ended, and a message that
            # Celery requeues can arrive before the process that ran it is dead. Parked, it would
            # come back only after a whole ttl.
            is_after_it = is_successor(request) or is_redelivered(request)
            return {"wait": _OWN_EARLIER_RUN_S} if is_after_it else None
        # A body that calls itself eagerly would wait for its own end.
        if not self._longest_wait or is_held_by_caller(held.owner):
            return None
        # An eager execution waits in a body, and a shutdown waits for that body.
        return {"wait": self._longest_wait, "held": None if request.is_eager else held}

    @property
    def _longest_wait(self) -> float:
        options = self.message.options
        if options.on_conflict is OnConflict.WAIT:
            return math.inf if options.wait is None else options.wait
        # An eager execution has no queue to go back to, so it waits.
        goes_back = options.on_conflict in (OnConflict.RESCHEDULE, OnConflict.COALESCE)
        return options.ttl if self.message.request.is_eager and goes_back else 0.0
