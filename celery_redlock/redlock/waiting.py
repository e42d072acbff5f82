"""Wait of one caller for a lock: when it asks the nodes again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from queue import Empty

from .waiters import LONGEST_SLEEP_S, MOST_PROCESSES, SPREAD_S, QueuedWaiter, Waiters

POLL_S = 1.0
"""Longest pause of the oldest waiter of a process; the second oldest pauses twice as long, etc."""
LATE_S = 0.004
"""Longest delay of the other processes, for each one that listens: together 250 ask a second."""
_FEWEST_PROCESSES = 4
_GONE_S = 5.0
"""A waiter this late was interrupted before it could leave its queue."""
OnWait = Callable[[], object]
"""Called about once a second during a wait; an exception that it raises ends the wait."""


class Waiter(QueuedWaiter):
    """One caller that waits for a lock.

    Args:
        waiters: All waiters of the process.
        channel: Channel of the lock.
        on_wait: See `OnWait`; None: nothing is called.
    """

    __slots__ = ("_called_at", "_on_wait", "_owes_attempt", "_waiters")

    def __init__(self, waiters: Waiters, channel: str, on_wait: OnWait | None = None) -> None:
        super().__init__(channel, waiters.clock.now())
        self._waiters = waiters
        self._on_wait = on_wait
        self._called_at = self.asked_at
        self._owes_attempt = False

    def place(self) -> int:
        """Return the place in the queue, from 1; 0: releases of the lock are not heard."""
        queue = self._waiters.queues.get(self.channel)
        if queue is None or not queue.is_heard:
            return 0
        waiters = list(queue.waiters)
        return 1 + (waiters.index(self) if self in waiters else len(waiters))

    @property
    def poll_interval_s(self) -> float:
        """Longest pause between two attempts, seconds; 0.0: releases of the lock are not heard."""
        return POLL_S * self.place()

    def wait_for_first_turn(self, seconds: float) -> None:
        """Return when this waiter may ask for the first time, in `seconds` at most.

        Older waiters of this process go first; after a release in this process, those of others.
        """
        yields_for = self._waiters.yields_for(self.channel)
        if self.place() > 1:
            self.wait(seconds)
        elif yields_for > 0:
            self._waiters.clock.sleep(min(seconds, yields_for))

    def wait(self, seconds: float) -> None:
        """Return after `seconds`; sooner when it is this waiter's turn to ask."""
        clock = self._waiters.clock
        now = clock.now()
        self._join(now)
        if not self.place():
            # A caller that counted on a wakeup may have come with a long pause, or with none.
            self.pause(min(seconds, LONGEST_SLEEP_S))
            return
        ends_at, asks_at = now + seconds, math.inf
        # The waiters in front may leave meanwhile, or the listener may end.
        while (ends_at := min(ends_at, now + self.poll_interval_s)) > now < asks_at:
            self.expected_by = now + _GONE_S
            if self._is_woken(min(ends_at, asks_at) - now):
                if (delay := self._delay()) is not None:
                    clock.sleep(delay)
                    return
                # Put off again by each further release: others have had the lock in between.
                asks_at = clock.now() + self._late_delay()
            self._call(now := clock.now())

    def pause(self, seconds: float) -> None:
        """Return after `seconds`, a second at most; before that, call `on_wait` if it is time."""
        if (now := self._waiters.clock.now()) >= self._called_at + LONGEST_SLEEP_S:
            self._call(now)
        self._waiters.clock.sleep(seconds)

    def has_asked(self, began: float) -> None:
        """Note an attempt that began at this time, seconds on the clock."""
        self._owes_attempt = False
        self.asked_at = began

    def leave(self) -> None:
        """Leave the queue; one that was woken and has not asked passes its turn on."""
        if self.joined is not None:
            self.joined = None
            owes_attempt = self._owes_attempt or not self.wakeups.empty()
            self._waiters.change(partial(self._waiters.leave, self, owes_attempt=owes_attempt))

    def _call(self, now: float) -> None:
        self._called_at = now
        if self._on_wait:
            self._on_wait()

    def _join(self, now: float) -> None:
        self.expected_by = now + _GONE_S
        # They are read before the start: a listener that ends before it has seen this waiter leaves
        # other ones behind. A waiter that has joined starts one, too: that which it counted on may
        # have ended, or never have begun.
        queues = self._waiters.queues
        if self._waiters.start() and self.joined is not queues:
            self.joined = queues
            self._waiters.change(partial(self._waiters.join, self))

    def _is_woken(self, within: float) -> bool:
        """Return whether a wakeup has come `within` so many seconds; take all that have."""
        try:
            self.wakeups.get(timeout=min(within, LONGEST_SLEEP_S))
        except Empty:
            return False
        self._owes_attempt = True
        while not self.wakeups.empty():
            self.wakeups.get()
        return True

    def _delay(self) -> float | None:
        """Return how long to let other processes go first, seconds; None: it was not drawn.

        The more other holders the lock has had meanwhile, the sooner and the more surely this one
        asks.
        """
        queue = self._waiters.queues.get(self.channel)
        if queue is None:
            return 0.0
        passed_over = queue.releases - self.releases_before
        asking = min(max(_FEWEST_PROCESSES, passed_over), MOST_PROCESSES)
        if random.random() * queue.listeners > asking:
            return None
        share = max(0.5, 1 - passed_over / queue.listeners)
        return random.uniform(0.0, SPREAD_S * (min(queue.listeners, MOST_PROCESSES) - 1) * share)

    def _late_delay(self) -> float:
        """Return how long to let the processes ask that were drawn, seconds.

        Perhaps none was: a node also counts processes that have stopped waiting, for a while.
        """
        queue = self._waiters.queues.get(self.channel)
        listeners = queue.listeners if queue else 0
        return random.uniform(min(listeners, MOST_PROCESSES) * SPREAD_S, listeners * LATE_S)
