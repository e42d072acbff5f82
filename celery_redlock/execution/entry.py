"""Entry of an execution: leases and reservations before the body, by the task's lifetime."""

from __future__ import annotations

import logging

from celery_redlock.config.options import OnConflict
from celery_redlock.messages.reservation import Reservation, pending_slot_key, release_reservation
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LockHeld, QuorumUnavailable, shown
from celery_redlock.redlock.lease import is_period, is_reservation, new_owner

from .attempt import acquire, release
from .decision import is_provisional
from .message import Message

logger = logging.getLogger(__name__)


def enter(message: Message) -> Lease | None:
    """Acquire the lease, or release the reservation, as the lifetime demands before the body.

    A reservation that could not be released is left to `Message.must_release`.

    Returns:
        The lease to run under, or None.

    Raises:
        AlreadyDone: Another copy of the message has run.
        LockHeld: Another execution or message holds the lock.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    lifetime = message.options.lifetime
    if lifetime.is_throttle:
        _enter_throttle(message)
    elif not lifetime.holds_while_running:
        _end_reservation(message)
    else:
        lease = _acquire_lease(message)
        message.must_release = False
        return lease
    return None


# ---- while_executing, until_executed, until_and_while_executing


def _acquire_lease(message: Message) -> Lease:
    try:
        lease = acquire(message)
    except AlreadyDone as done:
        # Another copy has run. But messages that were skipped since, because this one held the
        # pending slot, rely on one more run.
        if is_provisional(done) or not message.release_slot():
            raise
        message.has_result = True
        message.delivery.begin_once_more()
        lease = acquire(message)
    try:
        _prepare_run(message, lease)
    except BaseException:  # also a time limit
        release(message, lease)
        raise
    return lease


def _prepare_run(message: Message, lease: Lease) -> None:
    """Yield to a pending message, release the pending slot, and check the reservation."""
    if _is_newcomer(message):
        _yield_to_pending_slot(message)
    elif message.options.on_conflict is OnConflict.COALESCE and message.delivery.is_copy:
        message.release_left_slot()
    reservation, was_slot_held = message.delivery.reservation, False
    if reservation is None:
        pass
    elif reservation.key == message.key:
        _warn_if_expired(message, reservation, was_held=lease.took_over)
    elif reservation.key == pending_slot_key(message.key):
        was_slot_held = message.release_slot()
        if message.options.lifetime.reserves_pending_slot:
            _warn_if_expired(message, reservation, was_held=was_slot_held)
    else:
        # The reserved key is not the key computed here: the task has changed since the message was
        # published, or `lock_key` depends on the process that computes it.
        release_reservation(message.redlock, reservation)
    if not was_slot_held and message.may_have_unnamed_slot:
        message.release_left_slot()


def _is_newcomer(message: Message) -> bool:
    """Return whether this is the message's first execution, and another may hold the slot."""
    options, delivery = message.options, message.delivery
    return (
        options.on_conflict is OnConflict.COALESCE
        and not options.lifetime.reserves_at_publish
        and message.slot is None
        and not (delivery.request.is_eager or delivery.is_copy or delivery.is_successor)
    )


def _yield_to_pending_slot(message: Message) -> None:
    """Refuse to run a message while another one holds the pending slot, whose run covers both.

    Otherwise, of a long queue, each message that finds the lock free would run while the pending
    one is on its way back.

    Raises:
        LockHeld: Another message holds the pending slot.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    waiting = message.redlock.read_holder(pending_slot_key(message.key))
    if waiting and not waiting.contended:
        raise waiting


# ---- until_executing


def _end_reservation(message: Message) -> None:
    """Release the reservation; if that fails, it is to be released after the body."""
    reservation = message.delivery.reservation
    if reservation is None:
        # Published without a reservation. If another message holds one, this is its duplicate.
        release(message, acquire(message))
        message.must_release = False
        return
    try:
        was_held = message.redlock.release_owner(reservation.key, reservation.owner)
        is_free = was_held and reservation.key == message.key
        if not is_free and _is_held_for(message, message.redlock.read_holder(message.key)):
            # It runs under an older lifetime. If it retries, it is about to hand its lock over to
            # this very reservation, which nobody would release after that. Or the headers name
            # another reservation than the message's own.
            release(message, acquire(message))
            message.must_release = False
            return
    except QuorumUnavailable as error:
        logger.warning(
            "reservation not released before the body, released after it key=%s error=%s",
            reservation.key,
            error,
        )
        return
    message.must_release = False
    _warn_if_expired(message, reservation, was_held=was_held)


def _is_held_for(message: Message, held: LockHeld | None) -> bool:
    """Return whether the lock is held by a run of this message, or by its reservation."""
    if held is None or not message.delivery.has_owner(held.owner):
        return False
    return is_reservation(held.owner) or not is_period(held.owner)


def _is_run_of(message: Message, held: LockHeld) -> bool:
    """Return whether the lock is held by a run of this message: an earlier one, or a copy's."""
    return _is_held_for(message, held) and not is_reservation(held.owner)


def _warn_if_expired(message: Message, reservation: Reservation, *, was_held: bool) -> None:
    is_first = not message.request.retries and not message.delivery.may_have_copy
    if not was_held and is_first:
        logger.warning(
            "reservation expired in queue, running task anyway key=%s task_id=%s",
            reservation.key, shown(message.request.id),
        )  # fmt: skip


# ---- until_expired


def _enter_throttle(message: Message) -> None:
    """Begin the throttle's period, unless this message's own period has begun.

    The period's owner is not marked as a reservation: a message with a forged reservation may
    supersede a reservation, but never the period of a message that has run.

    Raises:
        LockHeld: Another message of this key has run in the period, or holds its reservation. Or
            this message runs already, under an older lifetime.
        AlreadyDone: Another copy of the message has run, under an older lifetime.
    """
    ttl = message.options.ttl
    reservation = message.delivery.reservation
    try:
        _begin_period(message, ttl)
    except LockHeld as held:
        _take_over_period(message, held)
    # Of an older lifetime, the pending slot; or of the key that the call had before a deployment.
    if reservation is not None and reservation.key != message.key:
        _end_reservation(message)
    else:
        message.must_release = False


def _take_over_period(message: Message, held: LockHeld) -> None:
    """Begin the throttle's period in the place of the holder, if it is this message's."""
    ttl = message.options.ttl
    is_own = message.delivery.has_owner(held.owner)
    # Only a period outlasts every lease, also if its owner is of a version that did not say so.
    if _is_run_of(message, held) and held.remaining <= message.redlock.max_ttl:
        lease = acquire(message)
        try:
            _begin_period(message, ttl, lease.owner)
        except BaseException:  # also a time limit
            release(message, lease)
            raise
        message.owner = None
        return
    if not is_reservation(held.owner):
        if is_own:  # begun by an earlier delivery, or by the run that retries
            return
        raise held
    reservation = message.delivery.reservation
    if reservation and reservation.key == message.key:
        is_own = is_own or held.owner == reservation.owner
    elif not is_own:
        raise held
    # A reserved period continues, but for no longer than the task's own. A
    # reservation that was made with another lifetime has none.
    is_begun = is_own and is_period(held.owner)
    _begin_period(message, min(ttl, held.remaining) if is_begun else ttl, held.owner)


def _begin_period(message: Message, ttl: float, supersedes: str | None = None) -> None:
    delivery = message.delivery
    owner = new_owner(str(delivery.request.id), publication=delivery.publication, is_period=True)
    message.redlock.reserve(message.key, ttl, owner=owner, supersedes=supersedes)
