"""Log level of an event that many messages meet: loud at first and now and then, else DEBUG."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable


class ThrottledLog:
    """Log level of one kind of event in this process.

    Args:
        now: Time, in seconds.
        quiet: How long events are logged at DEBUG after a loud one, in seconds.

    Attributes:
        count: How many times the event has occurred since it last ended.
    """

    count = 0
    _is_logged = False

    def __init__(self, now: Callable[[], float] = time.monotonic, quiet: float = 30.0) -> None:
        self._now = now
        self._quiet = quiet
        self._quiet_until = -math.inf

    def occurred(self, level: int) -> int:
        """Count one more event, and return the level to log it at.

        Returns:
            `level`, or DEBUG for `quiet` seconds after that.
        """
        self.count += 1
        now = self._now()
        if now < self._quiet_until:
            return logging.DEBUG
        self._quiet_until = now + self._quiet
        self._is_logged = True
        return level

    def ended(self) -> int:
        """Note the end; return how many times the event had occurred, or 0 if that is not to log.

        It is not if the event never was.
        """
        count, is_logged = self.count, self._is_logged
        self.count, self._is_logged = 0, False
        return count if is_logged else 0
