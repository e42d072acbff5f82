"""Pending slot of a key: reserved by the one message that waits for the lock's holder to end.

Messages that find it reserved are skipped, and rely on the pending message's run. So the slot is
released before that run's body begins, and a message that holds it never ends without running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_redlock.redlock.errors import LockHeld
from celery_redlock.redlock.task_lock import TaskLock

from .headers import is_copy, is_of, publication_of
from .reservation import Reservation, pending_slot_key, reservation_in, reserve

if TYPE_CHECKING:
    from celery.app.task import Context


@dataclass(frozen=True, slots=True)
class PendingSlot:
    """Pending slot of one key, as seen by one message that is being executed.

    Attributes:
        redlock: Lock of the app.
        key: Key of the lock.
        request: Request of the message.
        ttl: How long the slot outlives a message that never comes back, in seconds.
    """

    redlock: TaskLock
    key: str
    request: Context
    ttl: float

    @property
    def reservation(self) -> Reservation | None:
        """Reservation of the slot in the message's headers, or None; it may have expired."""
        reservation = reservation_in(self.request.headers)
        return (
            reservation if reservation and reservation.key == pending_slot_key(self.key) else None
        )

    def reserve(self) -> Reservation:
        """Return a new reservation of the slot, for the message to carry back to its queue.

        Raises:
            LockHeld: Another message holds the slot, or another copy of this one that goes back.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        try:
            return self._replace(self.reservation)
        except LockHeld as held:
            # An earlier delivery may have died after it reserved the slot and before it was
            # requeued. If it did not die, it will find the slot superseded, and end.
            if not (is_of(held.owner, self.request) and is_copy(self.request)):
                raise
            return self._replace(Reservation(held.key, str(held.owner)))

    def _replace(self, replaces: Reservation | None) -> Reservation:
        key = pending_slot_key(self.key)
        return reserve(
            self.redlock, key, self.ttl, self.request.id, publication_of(self.request), replaces
        )

    def release(self) -> bool:
        """Release the slot; return whether this message held it until now.

        To be called before the body reads anything: later messages must not rely on this run. So a
        quorum has to confirm the release.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum confirmed.
        """
        slot = self.reservation
        return slot is not None and self.redlock.release_owner(slot.key, slot.owner)

    def release_left(self) -> None:
        """Release the slot if an earlier delivery of this message has left it reserved.

        That delivery died before it requeued the message with the slot. Later messages would be
        skipped for it until it expires, though no run is to come.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer, or confirm.
        """
        held = self.redlock.look(pending_slot_key(self.key))
        if held and is_of(held.owner, self.request):
            self.redlock.release_owner(held.key, str(held.owner))
