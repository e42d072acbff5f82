"""The place in line: held by the one message that waits for the holder of a lock to end.

Whoever comes while it is taken is turned away, and relies on a run to come. So it is given up
before that run's body begins, and a message that has it never ends without running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .publish import Reservation, next_in_line, reservation_in, reserve
from .redlock import Redlock
from .redlock.errors import LockHeld
from .run import is_copy, is_of

if TYPE_CHECKING:
    from celery.app.task import Context

PAUSE_S = 1.0
"""How often the next in line looks whether the lock is free."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line before one lock, as one message that is being executed sees it.

    Attributes:
        redlock: The lock.
        name: Its name.
        request: The message's request.
        ttl: How long the place outlives a message that never comes back for it, seconds.
    """

    redlock: Redlock
    name: str
    request: Context
    ttl: float

    @property
    def place(self) -> Reservation | None:
        """The place that this message has, or had."""
        reservation = reservation_in(self.request.headers)
        return reservation if reservation and reservation.key == next_in_line(self.name) else None

    def keep(self) -> Reservation:
        """Return the place, taken or renewed, for the message to carry back to the queue.

        Raises:
            LockHeld: Another message has it, or another copy of this one that does go back.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        try:
            return self._reserve(self.place)
        except LockHeld as held:
            # An earlier delivery may have died after it took the place and before it was back in
            # the queue. If it did not, it finds us here, and ends.
            if not (is_of(held.holder, self.request) and is_copy(self.request)):
                raise
            return self._reserve(Reservation(held.key, str(held.holder)))

    def _reserve(self, replaces: Reservation | None) -> Reservation:
        key = next_in_line(self.name)
        return reserve(self.redlock, key, self.ttl, self.request.id, replaces)

    def leave(self) -> bool:
        """Give the place up; tell whether this message had it until now.

        Before the body reads anything: whoever comes from now on must not rely on this run. So it
        has to be confirmed.

        Raises:
            QuorumUnavailable: It is not.
        """
        place = self.place
        return place is not None and self.redlock.drop(place.key, place.owner)
