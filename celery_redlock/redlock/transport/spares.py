"""Spare: a new connection to a node beside one that does not answer."""

from __future__ import annotations

import math

from celery_redlock.redlock.clock import Clock

from .connection import NodeConnection

_PAUSE_S = 5.0
_RETRY_S = 0.1
"""Pause after one that could not be made."""


class Spares:
    """When to try a spare for a connection to a node; all channels share the pauses.

    The server may hang, and a spare is no better then. So one is tried now and then, and if it was
    made, one for each connection that is older. A connection that has answered since it was made
    gets one at once if the last one was made quickly.

    Args:
        clock: Time.

    Attributes:
        began_at: Time at which a channel began to try one, seconds on the clock; minus infinity:
            none does.
    """

    def __init__(self, clock: Clock) -> None:
        self.began_at = -math.inf
        self._clock = clock
        self._due_at = self._pause_ends_at = self._retry_at = self._renewed_at = -math.inf
        self._was_quick = False

    def begins(self, connection: NodeConnection) -> bool:
        """Return whether to try one for a connection that does not answer; note that it begins."""
        now = self._clock.now()
        is_replaced = connection.identified_at < self._renewed_at
        is_at_once = self._was_quick and connection.received > connection.greeted
        if now >= self._pause_ends_at:
            self._due_at = now
        elif now < self._retry_at or not (is_replaced or is_at_once):
            return False
        self._pause_ends_at, self.began_at = now + _PAUSE_S, now
        self._was_quick = False
        return True

    def ends(self, *, is_made: bool, is_quick: bool) -> None:
        """Note that one was made, or could not be.

        Args:
            is_made: Whether it was made.
            is_quick: Whether that took no longer than a round may take.
        """
        self.began_at = -math.inf
        self._was_quick = is_made and is_quick
        if is_made:
            self._renewed_at = self._due_at
        else:
            self._retry_at = self._clock.now() + _RETRY_S

    def forget(self) -> None:
        """In a child: forget one that is under way, which is the parent's."""
        self.began_at = -math.inf
