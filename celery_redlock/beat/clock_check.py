"""Check of this host's wall clock, which names the slots, against the nodes' clocks."""

from __future__ import annotations

import logging
import math
from enum import Enum

from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.throttled_log import ThrottledLog

logger = logging.getLogger(__name__)
_CHECK_S = 5.0
_AGAIN_S = 1.0
_QUIET_S = 60.0
_STEP_S = 0.2
_QUICK_S = 0.2
"""A slower round says too little about when the nodes read their clocks."""


class Trust(Enum):
    """State of the wall clock, as far as known."""

    RIGHT = "right"
    OFF = "off"
    UNKNOWN = "unknown"


class ClockCheck:
    """Comparison of the wall clock with the nodes', now and then and whenever it was set.

    Args:
        redlock: The nodes.
        allowed: The largest offset that counts as right, seconds.
    """

    _trust: Trust
    _again_at: float

    def __init__(self, redlock: TaskLock, allowed: float) -> None:
        self._redlock = redlock
        self._allowed = allowed
        self._ahead_of_boot_time = math.inf
        self._wrong = ThrottledLog(redlock.clock.now, _QUIET_S)

    def check(self) -> Trust:
        """Return the clock's state; the last one known while no quorum answers."""
        clock = self._redlock.clock
        now = clock.now()
        ahead = clock.wall_us() / 1e6 - now
        if abs(ahead - self._ahead_of_boot_time) > _STEP_S:
            self._ahead_of_boot_time = ahead
            self._trust, self._again_at = Trust.UNKNOWN, now
        if now >= self._again_at:
            offset = self._offset()
            if offset is not None:
                self._judge(offset)
            elif self._trust is Trust.UNKNOWN:
                level = self._wrong.occurred(logging.ERROR)
                logger.log(level, "clock not compared: no quorum answered quickly")
            self._again_at = now + (_AGAIN_S if offset is None else _CHECK_S)
        return self._trust

    def _offset(self) -> float | None:
        """Return the clock's offset from a majority of the nodes' clocks, in seconds.

        The median of the absolute offsets: a majority of the nodes that answered is at least as
        near. None if too few nodes answered.
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

    def _judge(self, offset: float) -> None:
        if abs(offset) <= self._allowed:
            if self._wrong.ended():
                logger.warning("clock right again, publishing ticks offset_s=%.3f", offset)
            self._trust = Trust.RIGHT
            return
        self._trust = Trust.OFF
        logger.log(
            self._wrong.occurred(logging.ERROR),
            "clock off, publishing no ticks here offset_s=%.3f allowed_s=%.3f",
            offset, self._allowed,
        )  # fmt: skip
