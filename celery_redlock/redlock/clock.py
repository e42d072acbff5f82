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


def _counts_suspend() -> bool:
    """Return whether there is a clock that counts suspend, and this process may read it."""
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except (AttributeError, OSError):  # a sandbox, or an old kernel
        return False
    return True


class SystemClock:
    """The machine's clocks: CLOCK_BOOTTIME where it can be read, else the monotonic clock.

    CLOCK_MONOTONIC stands still while a laptop or a virtual machine is suspended; the keys on the
    nodes expire meanwhile, so a lease measured on it would seem to last.
    """

    # A lock reads it twenty times: in C.
    if _counts_suspend():
        now = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        now = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        """Return µs since the epoch."""
        return time.time_ns() // 1000

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        time.sleep(seconds)
