"""Reservations: locks acquired when a message is published, for its time in the queue.

The owner travels in the message's headers; the worker's lease supersedes it. A reservation only
saves work: a message whose reservation has expired runs anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from celery_redlock.keys import is_key_of
from celery_redlock.pools.pool_process import announcer, withdraw_attempts
from celery_redlock.redlock.errors import ConfigurationError, RedlockError
from celery_redlock.redlock.lease import is_period, is_reservation
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.validation import check_key
from celery_redlock.throttled_log import ThrottledLog

from .headers import RESERVATION_HEADER

logger = logging.getLogger(__name__)
_unreleased = ThrottledLog()
_NEXT = "%next"
"""Suffix of the key of a pending slot. No key of a task can end so: every % from arguments is
escaped."""


class Reservation(NamedTuple):
    """Lock that a message holds while it waits in the queue.

    Attributes:
        key: Key that is reserved.
        owner: Owner of the reservation.
    """

    key: str
    owner: str

    @property
    def is_period(self) -> bool:
        """Whether it is the period of a throttle, and lasts whatever becomes of the message.

        The owner says so, since the task's lifetime may have changed after the message was sent.
        """
        return is_period(self.owner)

    @property
    def header(self) -> dict[str, list[str]]:
        """Header of the message that carries the reservation."""
        return {RESERVATION_HEADER: [self.key, self.owner]}


def reservation_in(headers: Mapping[str, Any] | None) -> Reservation | None:
    """Return the reservation in a message's headers, or None; it may have expired."""
    match headers.get(RESERVATION_HEADER) if isinstance(headers, (dict, Mapping)) else None:
        # A publisher can write anything there, but must not end a lease, or fail a run, with it.
        case [str(key), str(owner)] if is_reservation(owner) and _is_valid(key, owner):
            return Reservation(key, owner)
    return None


def reservation_of(task_name: str, headers: Mapping[str, Any] | None) -> Reservation | None:
    """Return the reservation in a message's headers if its key is one of this task's."""
    reservation = reservation_in(headers)
    if reservation and is_key_of(reservation.key.removesuffix(_NEXT), task_name):
        return reservation
    return None


def _is_valid(key: str, owner: str) -> bool:
    try:
        check_key(key)
        owner.encode()
    except (ConfigurationError, UnicodeEncodeError):
        return False
    return True


def pending_slot_key(key: str) -> str:
    """Return the key of the pending slot of `key`."""
    return key + _NEXT


def is_pending_slot_key(key: str) -> bool:
    """Return whether `key` is that of a pending slot."""
    return key.endswith(_NEXT)


def reserve(
    redlock: TaskLock,
    key: str,
    ttl: float,
    task_id: str | None,
    publication: str,
    replaces: Reservation | None = None,
    *,
    is_period: bool = False,
) -> Reservation:
    """Return a new reservation for a message, which supersedes `replaces` if given.

    If a pool process is killed before it withdraws its attempt, the keeper releases the
    reservation: whether the message was published is unknown then.

    Raises:
        LockHeld: Another message or execution holds the key.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    supersedes = replaces.owner if replaces and replaces.key == key else None
    try:
        lease = redlock.reserve(
            key,
            ttl,
            label=task_id,
            publication=publication,
            supersedes=supersedes,
            is_period=is_period,
            on_attempt=announcer(redlock, key, ttl),
        )
    except RedlockError:
        withdraw_attempts()
        raise
    return Reservation(key, lease.owner)


def release_reservation(redlock: TaskLock, reservation: Reservation) -> bool:
    """Release a reservation, and return whether it stood.

    If that fails, it is logged: the reservation expires by its ttl.
    """
    try:
        was_held = redlock.release_owner(reservation.key, reservation.owner)
    except RedlockError as error:
        log_not_released(reservation, error)
        return False
    if count := _unreleased.ended():
        logger.warning("reservations are released again count=%d", count)
    return was_held


def release_left_slot(
    redlock: TaskLock, slot: str, has_owner: Callable[[str | None], bool]
) -> None:
    """Release a pending slot if an earlier delivery of this message has left it reserved.

    That delivery died before it requeued the message with the slot. Later messages would be skipped
    for it until it expires, though no run is to come.

    Args:
        redlock: Lock of the app.
        slot: Key of the slot.
        has_owner: Returns whether an owner is the message's; see `Delivery.has_owner`.

    Raises:
        QuorumUnavailable: Fewer nodes than a quorum could answer, or confirm.
    """
    held = redlock.read_holder(slot)
    if held and has_owner(held.owner):
        redlock.release_owner(held.key, str(held.owner))


def log_not_released(reservation: Reservation, error: RedlockError) -> None:
    """Log that a reservation stays for its ttl: throttled, not once for each reservation."""
    logger.log(
        _unreleased.occurred(logging.WARNING),
        "reservation not released, it expires by its ttl key=%s count=%d error=%s",
        reservation.key, _unreleased.count, error,
    )  # fmt: skip


def release_all(redlock: TaskLock, key: str) -> bool:
    """Release every reservation of a key, and of its pending slot, and the period of a throttle.

    Args:
        redlock: Lock of the app.
        key: Key of the lock.

    Returns:
        Whether there was a reservation.

    Raises:
        QuorumUnavailable: Fewer nodes than a quorum answered, or confirmed.
    """
    was_held = False
    for reserved in (key, pending_slot_key(key)):
        for _ in redlock.nodes:  # there are at most as many owners as nodes
            held = redlock.read_holder(reserved)
            if held is None or not (is_reservation(held.owner) or is_period(held.owner)):
                break
            was_held |= redlock.release_owner(reserved, str(held.owner))
    return was_held
