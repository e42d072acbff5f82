"""Attempts to acquire a message's lock: what they supersede, and how long they wait."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from celery.exceptions import TaskRevokedError

from celery_redlock import signals
from celery_redlock.config.options import OnConflict
from celery_redlock.messages.headers import seconds_until
from celery_redlock.pools.pool_process import announce_wait, announcer, is_shutting_down
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, RedlockError
from celery_redlock.redlock.lease import is_period, is_reservation, release_or_warn

from . import no_quorum
from .kills import is_revoked
from .message import Message
from .running import is_held_by_caller

logger = logging.getLogger(__name__)
_OWN_EARLIER_RUN_S = 1.0
"""How long a message waits for its own earlier run to end and release the lock.

That takes milliseconds after a retry, and half a second if the earlier run's process is being
terminated.
"""


class _Request(NamedTuple):
    """Request for a message's lock.

    Attributes:
        message: Message to acquire it for.
        ttl: Of the lease, in seconds.
        announce: Announces an owner to the keeper; None without one.
        supersedes: As in `TaskLock.acquire_for_task`.
        is_successor: As in `TaskLock.acquire_for_task`.
        unless_done: As in `TaskLock.acquire_for_task`.
        wait: Longest wait, in seconds; None: no wait.
        held: Error that ends the wait when the worker is shut down; None to wait on.
    """

    message: Message
    ttl: float
    announce: Callable[[str], None] | None
    supersedes: str | None
    is_successor: bool
    unless_done: tuple[str, ...]
    wait: float | None = None
    held: LockHeld | None = None


def acquire(message: Message) -> Lease:
    """Return a lease of a message's lock.

    Raises:
        AlreadyDone: Another copy of the message has run.
        LockHeld: Another execution holds the lock, also after the wait, if any.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
        TaskRevokedError: The task was revoked during the wait.
    """
    delivery = message.delivery
    reservation = delivery.reservation
    is_holding = reservation is not None and reservation.key == message.key
    # The period of a throttle may be longer than any lease.
    ttl = min(message.options.ttl, message.redlock.max_ttl)
    request = _Request(
        message,
        ttl,
        announcer(message.redlock, message.key, ttl),
        supersedes=reservation.owner if reservation and is_holding else None,
        is_successor=is_holding and delivery.is_successor,
        unless_done=delivery.marks_to_check,
    )
    try:
        return _ask(request)
    except LockHeld as held:
        again = _second_request(request, held, is_holding=is_holding)
        if again is None:
            raise
        with _announced_wait(message, held) if again.wait else nullcontext():
            return _ask(again)


def release(message: Message, lease: Lease) -> None:
    """Release a lease under which no body has run."""
    release_or_warn(message.redlock.release, lease)
    message.owner = None


def discard_grant(message: Message) -> None:
    """Discard the grant of the last request, which no lease represents."""
    try:
        message.redlock.release_owner(message.key, str(message.owner))
    except RedlockError as error:
        logger.warning(
            "grant not discarded, it expires by its ttl key=%s error=%s", message.key, error
        )


def _ask(request: _Request) -> Lease:
    """Acquire the lock, with the owner recorded before each request to the nodes."""
    message, announce, held = request.message, request.announce, request.held
    # No worker revokes an eager execution.
    may_be_revoked = bool(request.wait) and not message.request.is_eager

    def end_wait() -> None:
        if held and is_shutting_down():
            raise held
        if may_be_revoked and is_revoked(message.request):
            raise TaskRevokedError("revoked")

    def record(owner: str) -> None:
        end_wait()
        message.owner = owner
        if announce:
            announce(owner)

    try:
        lease = message.redlock.acquire_for_task(
            message.key,
            request.ttl,
            wait=request.wait,
            lock_delay=message.options.delay,
            label=message.request.id,
            publication=message.delivery.publication,
            supersedes=request.supersedes,
            is_successor=request.is_successor,
            unless_done=request.unless_done,
            on_attempt=record,
            on_wait=end_wait,
        )
    except (RedlockError, TaskRevokedError):
        message.owner = None  # a failed acquisition leaves no grant
        raise
    no_quorum.announce_over()
    return lease


@contextmanager
def _announced_wait(message: Message, held: LockHeld) -> Iterator[None]:
    """Send to signal receivers that the block waits for a lock, and for how long it did."""
    now = message.redlock.clock.now
    about: dict[str, Any] = {"sender": message.task, "task_id": message.request.id}
    announce_wait()
    signals.lock_wait_began.send(error=held, **about)
    began = now()
    try:
        yield
    finally:
        signals.lock_wait_ended.send(waited=now() - began, **about)


def _second_request(first: _Request, held: LockHeld, *, is_holding: bool) -> _Request | None:
    """Return a second request for the lock, or None if it would fail as well.

    Args:
        first: Request that has failed.
        held: Error of the first request.
        is_holding: Whether this message carries a reservation of the key.
    """
    message = first.message
    delivery, longest = message.delivery, _longest_wait(message)
    is_own = delivery.has_owner(held.owner)
    is_waiting = is_reservation(held.owner) and (is_own or is_holding)
    if is_waiting or (is_own and is_period(held.owner)):
        # Nothing runs. The holder is an earlier attempt to publish this message, or a later
        # message that reserved the key after this one's reservation expired. In a queue slower
        # than a reservation's ttl each message would yield to the next, and none would run. Or
        # it is the period that an earlier run of this message began, when the task was a
        # throttle.
        return first._replace(supersedes=held.owner, wait=longest)
    if is_own and not delivery.request.is_eager:
        # A retry can arrive before the run that published it has ended, and a message that
        # Celery requeues can arrive before the process that ran it is dead. Parked, it would
        # come back only after a whole ttl.
        is_after_it = delivery.is_successor or delivery.is_redelivered
        return first._replace(wait=_OWN_EARLIER_RUN_S) if is_after_it else None
    # A body that calls itself eagerly would wait for its own end.
    if not longest or is_held_by_caller(held.owner):
        return None
    # An eager execution waits in a body, and a shutdown waits for that body.
    return first._replace(wait=longest, held=None if delivery.request.is_eager else held)


def _longest_wait(message: Message) -> float:
    """Return how long a message may wait for its lock: not past its expiry, in seconds."""
    options = message.options
    if options.on_conflict is OnConflict.WAIT:
        longest = math.inf if options.wait is None else options.wait
    elif options.on_conflict in (OnConflict.RESCHEDULE, OnConflict.COALESCE):
        # Without a queue to go back to, it waits.
        longest = 0.0 if message.delivery.can_be_requeued else options.ttl
    else:
        return 0.0
    left = seconds_until(message.request.expires)
    return longest if left is None else max(0.0, min(longest, left))
