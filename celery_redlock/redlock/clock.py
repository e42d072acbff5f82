"""Injected time: durations on a clock that counts suspend; wall time only to propose tokens."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time."""

    def now(self) -> float:
        """Return seconds on a clock that nobody can set and that counts suspend."""

    def wall_us(self) -> int:
        """Return µs since the epoch."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


class SystemClock:
    """The machine's clocks: CLOCK_BOOTTIME where there is one, else the monotonic clock.

    CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended; the keys on the
    nodes expire meanwhile, so a lease measured on it would seem to last.
    """

    if hasattr(time, "CLOCK_BOOTTIME"):

        def now(self) -> float:
            """Return seconds since the machine was started, suspend included."""
            return time.clock_gettime(time.CLOCK_BOOTTIME)

    else:

        def now(self) -> float:
            """Return seconds on the monotonic clock."""
            return time.monotonic()

    def wall_us(self) -> int:
        """Return µs since the epoch."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(seconds)
