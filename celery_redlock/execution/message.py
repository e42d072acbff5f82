"""A message that is being executed, with its key and its reservations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_redlock.config.options import LockOptions
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.reservation import (
    Reservation,
    log_not_released,
    pending_slot_key,
    release_left_slot,
    release_reservation,
    reserve,
)
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, RedlockError
from celery_redlock.redlock.task_lock import TaskLock

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_SLOT_TTL_S = 60.0
"""How long a pending slot outlives a message that never comes back."""


@dataclass(slots=True, eq=False)
class Message:
    """Message that is being executed.

    Attributes:
        delivery: Delivery of the message.
        redlock: Lock of the app.
        options: Options of the task.
        key: Key of the message's lock.
        body: Function that runs the task's body, given the lease or None.
        has_result: Whether a copy of the message has run, as a node has told, and this is to be one
            more run.
        owner: Owner of the last request for the lock, until the request has failed or its lease is
            released.
        must_release: Whether the execution is still to release the message's reservation. Not if it
            has, nor if a lease supersedes it, nor if the message takes it back to the queue.
    """

    delivery: Delivery
    redlock: TaskLock
    options: LockOptions
    key: str
    body: Callable[[Lease | None], Any]
    has_result: bool = False
    owner: str | None = None
    must_release: bool = True

    @property
    def task(self) -> Task[Any, Any]:
        """Task of the message."""
        return self.delivery.task

    @property
    def request(self) -> Context:
        """Request of the execution."""
        return self.delivery.request

    def release_reservation(self) -> None:
        """Release the message's reservation, unless that is a throttle's period."""
        slot_key, was_slot_held = pending_slot_key(self.key), False
        reservation = self.delivery.reservation
        if reservation and not reservation.is_period:
            was_held = release_reservation(self.redlock, reservation)
            was_slot_held = was_held and reservation.key == slot_key
        if not was_slot_held and self.may_have_unnamed_slot:
            try:
                self.release_left_slot()
            except RedlockError as error:
                log_not_released(Reservation(slot_key, ""), error)
        self.must_release = False

    @property
    def may_have_unnamed_slot(self) -> bool:
        """Whether the pending slot may be this message's, though its headers don't name its owner.

        Something between the publisher and the worker may have changed or dropped one of them. Not
        for a copy: there may be another copy, which has renewed the slot.
        """
        delivery = self.delivery
        is_reserved = self.options.lifetime.reserves_pending_slot and delivery.is_locked_for
        return is_reserved and not delivery.may_have_copy

    # ---- pending slot of the key: reserved by the one message that waits for the lock's holder

    # Messages that find it reserved are skipped, and rely on the pending message's run. So it is
    # released before that run's body begins, and a message that holds it never ends unrun.

    @property
    def slot(self) -> Reservation | None:
        """Reservation of the slot in the message's headers, or None; it may have expired."""
        reservation = self.delivery.reservation
        is_slot = reservation is not None and reservation.key == pending_slot_key(self.key)
        return reservation if is_slot else None

    def reserve_slot(self, after: float) -> Reservation:
        """Return a new reservation of the slot, to be requeued with for `after` seconds.

        Raises:
            LockHeld: Another message holds the slot, or another copy of this one that goes back.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        options, delivery = self.options, self.delivery
        is_reserved_at_publish = options.lifetime.reserves_pending_slot
        # Messages that find the slot reserved rely on this one. Acknowledged early, this message is
        # lost if the process dies before the message is requeued.
        ttl = (
            options.queue_ttl
            if is_reserved_at_publish and self.task.acks_late
            else _SLOT_TTL_S + after
        )

        def replace(replaces: Reservation | None) -> Reservation:
            key, publication = pending_slot_key(self.key), delivery.publication
            return reserve(self.redlock, key, ttl, self.request.id, publication, replaces)

        try:
            return replace(self.slot)
        except LockHeld as held:
            # An earlier delivery may have died after it reserved the slot and before it was
            # requeued. If it did not die, it will find the slot superseded, and end.
            if not (delivery.has_owner(held.owner) and delivery.is_copy):
                raise
            return replace(Reservation(held.key, str(held.owner)))

    def renew_slot(self, after: float) -> Reservation | None:
        """Reserve the message's slot again, if any, for a requeue in `after` seconds.

        Returns:
            The new reservation, or None: the message has no slot, or it can't be renewed.
        """
        try:
            return self.reserve_slot(after) if self.slot else None
        except LockHeld:
            return None
        except RedlockError as error:
            logger.warning(
                "pending slot not renewed, message requeued without it key=%s error=%s",
                self.key,
                error,
            )
            return None

    def release_slot(self) -> bool:
        """Release the slot; return whether this message held it until now.

        To be called before the body reads anything: later messages must not rely on this run. So a
        quorum has to confirm the release.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum confirmed.
        """
        slot = self.slot
        return slot is not None and self.redlock.release_owner(slot.key, slot.owner)

    def release_left_slot(self) -> None:
        """Release the slot as `reservation.release_left_slot` does."""
        release_left_slot(self.redlock, pending_slot_key(self.key), self.delivery.has_owner)
