"""Whether this host's wall clock is right: it names the slots, and the nodes' clocks judge it."""

from __future__ import annotations

import logging
from enum import Enum

from .redlock import Redlock
from .redlock.errors import RedlockError

logger = logging.getLogger(__name__)
_CHECK_S = 5.0
_AGAIN_S = 1.0
_SAY_AGAIN_S = 60.0
_STEP_S = 0.2
_QUICK_S = 0.2
"""A round that took longer says too little about when the nodes read their clocks."""


class Trust(Enum):
    """What is known of the clock."""

    RIGHT = "right"
    OFF = "off"
    UNKNOWN = "unknown"


class ClockCheck:
    """Compares the wall clock with the nodes' from time to time, and at once when it was set.

    Args:
        redlock: The nodes.
        allowed: By how much it may be off, seconds.
    """

    def __init__(self, redlock: Redlock, allowed: float) -> None:
        self._redlock = redlock
        self._allowed = allowed
        self._trust = Trust.UNKNOWN
        self._ahead_of_boot_time = self._again_at = float("-inf")
        self._said_at: float | None = None

    def look(self) -> Trust:
        """Return whether the clock is right. What was found stays while no quorum can be asked."""
        clock = self._redlock.clock
        now = clock.now()
        ahead = clock.wall_us() / 1e6 - now
        if abs(ahead - self._ahead_of_boot_time) > _STEP_S:
            self._ahead_of_boot_time = ahead
            self._trust, self._again_at = Trust.UNKNOWN, now
        if now >= self._again_at:
            offset = self._offset()
            if offset is not None:
                self._judge(offset, now)
            elif self._trust is Trust.UNKNOWN and self._may_say(now):
                logger.error("clock not compared: no quorum answers quickly")
            self._again_at = now + (_AGAIN_S if offset is None else _CHECK_S)
        return self._trust

    def _offset(self) -> float | None:
        """Return by how much the clock is ahead of a majority of the nodes', in seconds.

        That of the node in the middle, the nearest first: a majority of those that answered is as
        near, or nearer. None if too few did.
        """
        for _ in range(3):
            began = self._redlock.clock.now()
            try:
                offsets = sorted(self._redlock.clock_offsets().values(), key=abs)
            except RedlockError:
                return None
            if len(offsets) < self._redlock.quorum:
                return None
            if self._redlock.clock.now() - began < _QUICK_S:
                return offsets[len(offsets) // 2]
        return None

    def _judge(self, offset: float, now: float) -> None:
        if abs(offset) <= self._allowed:
            if self._said_at is not None:
                logger.warning("clock right again offset_s=%.3f", offset)
            self._trust, self._said_at = Trust.RIGHT, None
            return
        self._trust = Trust.OFF
        if self._may_say(now):
            logger.error(
                "clock off, nothing is published here offset_s=%.3f allowed_s=%.3f",
                offset, self._allowed,
            )  # fmt: skip

    def _may_say(self, now: float) -> bool:
        if self._said_at is not None and now - self._said_at < _SAY_AGAIN_S:
            return False
        self._said_at = now
        return True
