"""Injected time: durations on a clock that counts suspend; wall time only to propose tokens."""

from __future__ import annotations

import time
from functools import partial
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

    # A lock reads it twenty times: in C.
    if hasattr(time, "CLOCK_BOOTTIME"):
        now = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        now = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        """Return µs since the epoch."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(seconds)
