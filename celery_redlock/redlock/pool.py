"""Channels for any number of threads: lent for a round, and taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakSet

from .channel import Channel

_TURN_S = 0.001
"""How often it is looked whether another thread has done with a channel."""


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

    @contextmanager
    def channel(
        self, preferred: object = None, is_needed: Callable[[], bool] = lambda: False
    ) -> Iterator[Channel]:
        """Lend a channel that is ready for a round.

        Args:
            preferred: The one to lend if it is idle.
            is_needed: Whether to wait for that one while it is in use; asked again and again.
        """
        channel = self._take(preferred, is_needed)
        try:
            channel.prepare()
            yield channel
        except BaseException:
            # Whatever struck may have struck in the middle of a write.
            channel.close()
            raise
        self._idle.append(channel)

    def prepare(self) -> None:
        """Have a channel ready."""
        with self.channel():
            pass

    def _take(self, preferred: object, is_needed: Callable[[], bool]) -> Channel:
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
