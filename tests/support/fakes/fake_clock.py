"""Clocks for tests that must not wait: time that only moves when it is told to, or leaps."""

from __future__ import annotations

from celery_redlock.redlock.clock import Clock, SystemClock


class FakeClock:
    """A clock that stands still, but for `sleep` and `move`.

    Attributes:
        time: What `now` returns, seconds.
    """

    def __init__(self, time: float = 1000.0) -> None:
        self.time = time

    def now(self) -> float:
        """Return the time."""
        return self.time

    def wall_us(self) -> int:
        """Return the same time as µs since the epoch."""
        return round(self.time * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        self.move(seconds)

    def move(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.time += seconds


class LeapingClock(SystemClock):
    """The machine's clock, which can leap: for a client, time has passed; for the nodes, none.

    Attributes:
        slept: The pauses that were asked for, seconds. None was slept: the clock leapt.
    """

    def __init__(self) -> None:
        self.slept: list[float] = []
        self._ahead = 0.0

    def now(self) -> float:
        """Return the machine's boot time and all leaps."""
        return super().now() + self._ahead

    def sleep(self, seconds: float) -> None:
        """Leap instead."""
        self.slept.append(seconds)
        self.leap(seconds)

    def leap(self, seconds: float) -> None:
        """Be `seconds` later at once."""
        self._ahead += seconds


class StandingClock(LeapingClock):
    """A clock that tells the machine's date, and stands still between leaps."""

    def __init__(self) -> None:
        super().__init__()
        self._began = SystemClock().now()

    def now(self) -> float:
        """Return when it was made, and all leaps since."""
        return self._began + self._ahead


class OtherHostsClock:
    """The clock of a host whose date is wrong, and that was booted at another time.

    Args:
        right: The clock that shows the right date.
        ahead: By how much its date is ahead, seconds.
    """

    def __init__(self, right: Clock, ahead: float) -> None:
        self._right = right
        self._ahead = ahead

    def now(self) -> float:
        """Return the seconds since its boot."""
        return self._right.now() + 10_000.0 + 10 * self._ahead

    def wall_us(self) -> int:
        """Return its date as µs since the epoch."""
        return self._right.wall_us() + round(self._ahead * 1e6)

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        self._right.sleep(seconds)
