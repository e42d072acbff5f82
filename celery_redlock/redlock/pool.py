"""Channels for any number of threads: lent for a round, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable
from weakref import WeakSet

from .channel import Channel

_TURN_S = 0.001
"""How often it is looked whether another thread has done with a channel."""


class Loan:
    """A channel from `pool` for the length of a ``with`` block; see `Pool.channel`."""

    # Not a generator's context manager, which costs more than the rest of lending.
    __slots__ = ("_is_needed", "_lent", "_pool", "_preferred")

    def __init__(self, pool: Pool, preferred: object, is_needed: Callable[[], bool]) -> None:
        self._pool = pool
        self._preferred = preferred
        self._is_needed = is_needed

    def __enter__(self) -> Channel:
        """Return the channel, ready for a round."""
        self._lent = channel = self._pool.take(self._preferred, self._is_needed)
        try:
            channel.prepare()
        except BaseException:
            channel.close()
            raise
        return channel

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Take it back."""
        if kind is None:
            self._pool.put(self._lent)
        else:
            # Whatever struck may have struck in the middle of a write.
            self._lent.close()


class Pool:
    """Idle channels, for any number of threads; the one used last is taken first.

    Args:
        make: Makes a new channel when all are in use.
        sleep: Waits so many seconds.
    """

    def __init__(
        self, make: Callable[[], Channel], sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.make = make
        self._sleep = sleep
        self._idle: list[Channel] = []
        self._made: WeakSet[Channel] = WeakSet()

    def channel(
        self, preferred: object = None, is_needed: Callable[[], bool] = lambda: False
    ) -> Loan:
        """Lend a channel that is ready for a round.

        Args:
            preferred: The one to lend if it is idle.
            is_needed: Whether to wait for that one while it is in use; asked again and again.
        """
        return Loan(self, preferred, is_needed)

    def prepare(self) -> None:
        """Have a channel ready."""
        with self.channel():
            pass

    def take(self, preferred: object, is_needed: Callable[[], bool]) -> Channel:
        """Return an idle channel, or a new one; see `channel`."""
        # list.remove and list.pop are atomic: no lock that a fork could find held.
        while isinstance(preferred, Channel):
            try:
                self._idle.remove(preferred)
                return preferred
            except ValueError:
                if not is_needed():
                    break
            self._sleep(_TURN_S)
        try:
            return self._idle.pop()
        except IndexError:
            channel = self.make()
            self._made.add(channel)
            return channel

    def put(self, channel: Channel) -> None:
        """Take a channel back."""
        self._idle.append(channel)

    def forget(self) -> None:
        """After a fork: close our copies of the parent's connections, and no more than those."""
        self._idle = []
        made, self._made = self._made, WeakSet()
        for channel in list(made):
            channel.disown()

    def close(self) -> None:
        """Close the idle channels."""
        while self._idle:
            self._idle.pop().close()
