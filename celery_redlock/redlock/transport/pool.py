"""Pool of channels for any number of threads: each is lent for one round."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from celery_redlock.redlock.errors import ConfigurationError

from .channel import Channel

_TURN_S = 0.001
"""Interval of looks whether another thread has returned a channel."""
_WAKE_S = 0.05
"""Longest sleep of a thread that waits for any channel. An interrupt may strike the thread that is
about to wake it."""


class Loan:
    """A channel from `pool` for the length of a ``with`` block; see `Pool.channel`."""

    # A generator's context manager would cost more than the rest of lending.
    __slots__ = (
        "_goes_first", "_is_needed", "_lent", "_needs_votes", "_patience", "_pool", "_preferred",
    )  # fmt: skip

    def __init__(
        self,
        pool: Pool,
        preferred: object,
        is_needed: Callable[[], bool],
        patience: float | None,
        goes_first: bool,  # noqa: FBT001  # as in `Pool.channel`
        needs_votes: bool,  # noqa: FBT001
    ) -> None:
        self._pool = pool
        self._preferred = preferred
        self._is_needed = is_needed
        self._patience = patience
        self._goes_first = goes_first
        self._needs_votes = needs_votes

    def __enter__(self) -> Channel:
        """Return the channel, ready for a round."""
        self._lent = channel = self._pool.take(
            self._preferred, self._is_needed, self._patience, goes_first=self._goes_first
        )
        try:
            channel.prepare(self._patience, needs_votes=self._needs_votes)
        except BaseException:
            self._pool.discard(channel)
            raise
        return channel

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Return the channel to the pool."""
        # ConfigurationError is only raised between two rounds.
        if kind is None or kind is ConfigurationError:
            self._pool.put(self._lent)
        else:
            # The error may have struck in the middle of a write.
            self._pool.discard(self._lent)


class _Waiter:
    """Thread that waits for a channel, and the channel that another thread passes to it."""

    __slots__ = ("_given", "_is_given")

    def __init__(self) -> None:
        self._given: list[Channel] = []
        # An interrupt inside a Condition's wait turns into a RuntimeError. Among greenlets
        # this is their lock.
        self._is_given = threading.Lock()
        self._is_given.acquire()

    def give(self, channel: Channel) -> None:
        self._given.append(channel)
        self._is_given.release()

    def wait(self, seconds: float) -> None:
        self._is_given.acquire(timeout=seconds)

    def take(self) -> Channel | None:
        """Return the channel to its one taker, or None."""
        try:
            return self._given.pop()
        except IndexError:
            return None


class Pool:
    """Pool of channels for any number of threads; of the idle ones, the last used is lent first.

    There is no mutex here: another thread could hold it at a fork, or a signal handler of the same
    thread could need it. Each step is one atomic operation on a list, a deque or a set.

    Args:
        make: Makes a new channel while all are in use.
        most: Largest number of channels, >= 1. When all are in use, threads wait, the first one
            that came being served first, but after those that go first.
        patience: Longest wait for a channel, seconds. After it, a channel without connections is
            lent: in its rounds every node has failed.
        sleep: Waits for a number of seconds.
    """

    def __init__(
        self,
        make: Callable[[], Channel],
        most: int = 16,
        patience: float = 1.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.make = make
        self._most = most
        self._patience = patience
        self._sleep = sleep
        self._idle: list[Channel] = []
        self._waiting: deque[_Waiter] = deque()
        # The set is weak: a channel that an interrupt has struck out of its borrower's hands does
        # not count.
        self._made: WeakSet[Channel] = WeakSet()

    def channel(
        self,
        preferred: object = None,
        is_needed: Callable[[], bool] = lambda: False,
        patience: float | None = None,
        *,
        goes_first: bool = False,
        needs_votes: bool = True,
    ) -> Loan:
        """Lend a channel that is ready for a round.

        Args:
            preferred: Channel to lend if it is idle.
            is_needed: Returns whether to wait for that channel while it is in use; polled.
            patience: Longest wait for a channel, and again for connections while fewer than a
                quorum are up, seconds; None: the connect timeout.
            goes_first: Whether to be served before those that do not go first: a release frees
                others, and an extension has a deadline.
            needs_votes: Whether a node inside its restart guard is none of that quorum. It confirms
                releases like the others.
        """
        return Loan(self, preferred, is_needed, patience, goes_first, needs_votes)

    def prepare(self, patience: float | None = None) -> None:
        """Make and connect one channel ahead of its use; `patience` as for `channel`."""
        with self.channel(patience=patience):
            pass

    def take(
        self,
        preferred: object,
        is_needed: Callable[[], bool],
        patience: float | None,
        *,
        goes_first: bool,
    ) -> Channel:
        """Return an idle channel, or a new one; see `channel`."""
        while isinstance(preferred, Channel):
            try:
                self._idle.remove(preferred)
                return preferred
            except ValueError:
                if not is_needed():
                    break
            self._sleep(_TURN_S)
        channel = self._idle_or_new()
        if channel is None:
            longest = self._patience if patience is None else min(patience, self._patience)
            channel = self._wait(longest, goes_first=goes_first)
        if channel is None:
            channel = self.make()
            channel.stay_unconnected(f"all {self._most} connections of this process are in use")
        return channel

    def _idle_or_new(self) -> Channel | None:
        """Return a channel at once, or None while all are in use."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        if len(self._made) >= self._most:
            return None
        channel = self.make()
        self._made.add(channel)
        # Other threads may have added theirs meanwhile: nobody uses one beyond the limit.
        if len(self._made) > self._most:
            self._made.discard(channel)
            return None
        return channel

    def _wait(self, seconds: float, *, goes_first: bool) -> Channel | None:
        """Return the next channel that is free for this thread, or None after `seconds`."""
        waiter = _Waiter()
        if goes_first:
            self._waiting.appendleft(waiter)
        else:
            self._waiting.append(waiter)
        try:
            for _ in range(math.ceil(seconds / _WAKE_S)):
                # One may have been returned before this thread began to wait, or have been lost.
                if channel := self._idle_or_new() or waiter.take():
                    return channel
                waiter.wait(_WAKE_S)
            return waiter.take()
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiter)
            if unwanted := waiter.take():
                self.put(unwanted)

    def put(self, channel: Channel) -> None:
        """Return a channel to the pool."""
        if channel not in self._made:
            return  # without connections, or, after a fork, the parent's
        self._idle.append(channel)
        while self._waiting:
            try:
                channel = self._idle.pop()
            except IndexError:
                return
            try:
                self._waiting.popleft().give(channel)
            except IndexError:
                self._idle.append(channel)

    def discard(self, channel: Channel) -> None:
        """Close a channel for good; a thread that waits may make another one."""
        channel.close()
        self._made.discard(channel)
        if self._waiting and (another := self._idle_or_new()):
            self.put(another)

    def close_unused(self, seconds: float) -> None:
        """Close the channels that have been idle for so long."""
        for channel in self._idle.copy():
            if not channel.is_unused(seconds):
                continue
            try:
                self._idle.remove(channel)
            except ValueError:
                continue  # another thread has it
            self.discard(channel)

    def has_channels(self) -> bool:
        """Return whether there are any channels, idle or in use."""
        return bool(self._made)

    def forget(self) -> None:
        """Forget all channels, as after a fork: they are the parent's."""
        self._idle, self._waiting, self._made = [], deque(), WeakSet()

    def close(self) -> None:
        """Close the idle channels."""
        while self._idle:
            self.discard(self._idle.pop())
