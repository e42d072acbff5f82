"""Entry of an execution: leases and reservations before the body, by the task's lifetime."""

from __future__ import annotations

import logging

from celery_redlock.config.options import OnConflict
from celery_redlock.messages.done_marks import is_provisional
from celery_redlock.messages.headers import (
    begin_once_more,
    is_copy,
    is_of,
    is_successor,
    may_have_copy,
    publication_of,
)
from celery_redlock.messages.reservation import Reservation, pending_slot_key, release_reservation
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LockHeld, QuorumUnavailable
from celery_redlock.redlock.lease import is_reservation, new_owner

from .attempt import Attempt
from .message import Message

logger = logging.getLogger(__name__)


def enter(attempt: Attempt) -> Lease | Reservation | None:
    """Acquire the lease, or release the reservation, as the lifetime demands before the body.

    Returns:
        The lease to run under. Or a reservation that could not be released yet and is to be
        released after the body. Or None, if nothing is to be released after the body.

    Raises:
        AlreadyDone: Another copy of the message has run.
        LockHeld: Another execution or message holds the lock.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    lifetime = attempt.message.options.lifetime
    if lifetime.is_throttle:
        _enter_throttle(attempt.message)
        return None
    if not lifetime.holds_while_running:
        return _end_reservation(attempt)
    return _acquire_lease(attempt)


# ---- while_executing, until_executed, until_and_while_executing


def _acquire_lease(attempt: Attempt) -> Lease:
    try:
        lease = attempt.unless_retried(attempt.acquire())
    except AlreadyDone as done:
        # Another copy has run. But messages that were skipped since, because this one held the
        # pending slot, rely on one more run.
        if is_provisional(done) or not attempt.message.pending_slot().release():
            raise
        begin_once_more(attempt.message.request)
        lease = attempt.acquire()
    try:
        _prepare_run(attempt.message, lease)
    except BaseException:  # also a time limit
        attempt.release(lease)
        raise
    return lease


def _prepare_run(message: Message, lease: Lease) -> None:
    """Yield to a pending message, release the pending slot, and check the reservation."""
    if _is_newcomer(message):
        _yield_to_pending_slot(message)
    elif message.options.on_conflict is OnConflict.COALESCE and is_copy(message.request):
        message.pending_slot().release_left()
    reservation = message.reservation
    if reservation is None:
        return
    if reservation.key == message.key:
        _warn_if_expired(message, reservation, was_held=lease.took_over)
    elif reservation.key == pending_slot_key(message.key):
        was_held = message.pending_slot().release()
        if message.options.lifetime.reserves_pending_slot:
            _warn_if_expired(message, reservation, was_held=was_held)
    else:
        # The reserved key is not the key computed here: the task has changed since the message was
        # published, or `lock_key` depends on the process that computes it.
        release_reservation(message.redlock, reservation)


def _is_newcomer(message: Message) -> bool:
    """Return whether this is the message's first execution, and another may hold the slot."""
    options, request = message.options, message.request
    return (
        options.on_conflict is OnConflict.COALESCE
        and not options.lifetime.reserves_at_publish
        and message.pending_slot().reservation is None
        and not (request.is_eager or is_copy(request) or is_successor(request))
    )


def _yield_to_pending_slot(message: Message) -> None:
    """Refuse to run a message while another one holds the pending slot, whose run covers both.

    Otherwise, of a long queue, each message that finds the lock free would run while the pending
    one is on its way back.

    Raises:
        LockHeld: Another message holds the pending slot.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    waiting = message.redlock.look(pending_slot_key(message.key))
    if waiting and not waiting.contended:
        raise waiting


# ---- until_executing


def _end_reservation(attempt: Attempt) -> Reservation | None:
    """Release the reservation; return it if that fails."""
    reservation = attempt.message.reservation
    if reservation is None:
        # Published without a reservation. If another message holds one, this is its duplicate.
        attempt.release(attempt.acquire())
        return None
    try:
        was_held = attempt.message.redlock.release_owner(reservation.key, reservation.owner)
    except QuorumUnavailable as error:
        logger.warning(
            "reservation not released before the body, released after it key=%s error=%s",
            reservation.key,
            error,
        )
        return reservation
    _warn_if_expired(attempt.message, reservation, was_held=was_held)
    return None


def _warn_if_expired(message: Message, reservation: Reservation, *, was_held: bool) -> None:
    is_first = not message.request.retries and not may_have_copy(message.request)
    if not was_held and is_first:
        logger.warning(
            "reservation expired in queue, running task anyway key=%s task_id=%s",
            reservation.key, message.request.id,
        )  # fmt: skip


# ---- until_expired


def _enter_throttle(message: Message) -> None:
    """Begin the throttle's period, unless this message's own period has begun.

    The period's owner is not marked as a reservation: a message with a forged reservation may
    supersede a reservation, but never the period of a message that has run.

    Raises:
        LockHeld: Another message of this key has run in the period, or holds its reservation.
    """
    ttl = message.options.ttl
    try:
        _begin_period(message, ttl)
    except LockHeld as held:
        is_own = is_of(held.owner, message.request)
        if not is_reservation(held.owner):
            if is_own:  # begun by an earlier delivery, or by the run that retries
                return
            raise
        reservation = message.reservation
        if reservation and reservation.key == message.key:
            is_own = is_own or held.owner == reservation.owner
        elif not is_own:
            raise
        # The reserved period continues, but for no longer than the task's own: it may have been
        # reserved with another lifetime.
        _begin_period(message, min(ttl, held.remaining) if is_own else ttl, held.owner)


def _begin_period(message: Message, ttl: float, supersedes: str | None = None) -> None:
    request = message.request
    owner = new_owner(str(request.id), publication=publication_of(request))
    message.redlock.reserve(message.key, ttl, owner=owner, supersedes=supersedes)
