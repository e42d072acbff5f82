"""A message that is being executed, with its key and its reservations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_redlock.config.options import LockOptions
from celery_redlock.messages.pending_slot import PendingSlot
from celery_redlock.messages.reservation import Reservation, release_reservation, reservation_of
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, RedlockError
from celery_redlock.redlock.task_lock import TaskLock

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_SLOT_TTL_S = 60.0
"""How long a pending slot outlives a message that never comes back."""


class Message(NamedTuple):
    """Message that is being executed.

    Attributes:
        task: Task of the message.
        request: Request of the execution.
        redlock: Lock of the app.
        options: Options of the task.
        key: Key of the message's lock.
        body: Function that runs the task's body, given the lease or None.
    """

    task: Task[Any, Any]
    request: Context
    redlock: TaskLock
    options: LockOptions
    key: str
    body: Callable[[Lease | None], Any]

    @property
    def reservation(self) -> Reservation | None:
        """Reservation in the message's headers, if its key is one of the task's."""
        return reservation_of(self.task.name, self.request.headers)

    def release_reservation(self) -> None:
        """Release the message's reservation, unless that is a throttle."""
        if self.reservation and not self.options.lifetime.is_throttle:
            release_reservation(self.redlock, self.reservation)

    def pending_slot(self, after: float = 0.0) -> PendingSlot:
        """Return the pending slot for a message that comes back in `after` seconds."""
        options = self.options
        is_reserved_at_publish = options.lifetime.reserves_pending_slot
        # Messages that find the slot reserved rely on this one. Acknowledged early, this message is
        # lost if the process dies before the message is requeued.
        ttl = (
            options.queue_ttl
            if is_reserved_at_publish and self.task.acks_late
            else _SLOT_TTL_S + after
        )
        return PendingSlot(self.redlock, self.key, self.request, ttl)

    def renew_pending_slot(self, after: float) -> Reservation | None:
        """Reserve the message's pending slot again, if any, for a requeue in `after` seconds.

        Returns:
            The new reservation, or None: the message has no slot, or it can't be renewed.
        """
        slot = self.pending_slot(after)
        try:
            return slot.reserve() if slot.reservation else None
        except LockHeld:
            return None
        except RedlockError as error:
            logger.warning(
                "pending slot not renewed, message requeued without it key=%s error=%s",
                self.key,
                error,
            )
            return None
