"""Pauses of a caller that waits for a lock: they shorten with its age."""

from __future__ import annotations

import random

from .errors import LockHeld, RedlockError

_LONGEST_S = 0.2
_SHORTEST_S = 0.005
_PASSED_OVER = 2
"""After this many other holders, the pauses are half as long."""


class Backoff:
    """Pauses of one caller.

    They double from round to round. A caller that asks often gets the lock before one that asks
    seldom, so the pauses shorten each time another holder got the lock in between. A holder that
    stays does not shorten them.
    """

    # Of the class, since most acquisitions make no pause.
    _rounds = _splits = _passed_over = 0
    _holder: str | None = None

    def pause(
        self, outcome: RedlockError, round_took: float, poll_interval_s: float = 0.0
    ) -> float:
        """Return the pause before the next round, in seconds.

        Full jitter; at least the time of a round, and not past the expiry of the holder's lock.

        Args:
            outcome: Reason why the last round failed.
            round_took: Duration of that round, seconds.
            poll_interval_s: Longest pause of a caller that hears of releases, seconds; 0.0: it does
                not.
        """
        self._rounds += 1
        least = max(round_took, 0.001)
        longest = min(_LONGEST_S, least * 2 ** min(self._rounds, 16))
        if isinstance(outcome, LockHeld):
            remaining = outcome.remaining or longest  # 0.0: the lock key has no expiry
            if poll_interval_s and not outcome.contended:
                longest = min(poll_interval_s, remaining)
            else:
                longest = min(longest, remaining, self._fair(outcome, least))
        return least + random.uniform(0.0, longest)

    def _fair(self, held: LockHeld, least: float) -> float:
        if held.contended:
            # Callers that split the nodes between them must diverge, whatever their age.
            self._splits += 1
            return least * float(2 ** min(self._splits, 16))
        self._splits = 0
        if held.owner != self._holder:
            self._passed_over += self._holder is not None
            self._holder = held.owner
        return max(_SHORTEST_S, _LONGEST_S / (1 + self._passed_over / _PASSED_OVER))
