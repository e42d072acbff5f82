"""Waiters of a process without a thread, and a listener that hears at command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from queue import Empty
from typing import Any, cast

import pytest

from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from celery_redlock.redlock.waiters import Waiters
from celery_redlock.redlock.waiting import Waiter

from .fake_clock import FakeClock

QUORUM = 3


class Heard:
    """Subscriptions that have what a test puts in."""

    def __init__(self) -> None:
        self.followed: set[str] = set()
        self.is_heard = True
        self.messages: list[Message] = []
        self.disowned = self.closed = self.woken = self.lost = 0

    def follow(self, channels: AbstractSet[str]) -> None:
        self.followed = set(channels)

    def hear(self, _seconds: float) -> list[Message]:
        messages, self.messages = self.messages, []
        return messages

    def reaches_quorum(self, channel: str) -> bool:
        return self.is_heard and channel in self.followed

    def wake(self) -> None:
        self.woken += 1

    def disown(self) -> None:
        self.disowned += 1

    def close(self) -> None:
        self.closed += 1


class Wakeups:
    """Wakeups of a waiter whose timeouts pass at once, on the fake clock.

    Attributes:
        meanwhile: What happens during them: times, ascending, each with a callable.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.meanwhile: list[tuple[float, Callable[[], object]]] = []
        self._clock = clock
        self._count = 0

    def put(self, _wakeup: None) -> None:
        self._count += 1

    def empty(self) -> bool:
        return not self._count

    def get(self, timeout: float = 0.0) -> None:
        ends_at = self._clock.time + timeout
        while not self._count:
            if not self.meanwhile or self.meanwhile[0][0] >= ends_at:
                self._clock.time = ends_at
                raise Empty
            self._clock.time, happens = self.meanwhile.pop(0)
            happens()
        self._count -= 1


class Stage:
    """Waiters without a thread: `turn` is what the listener's thread would do next."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.heard = Heard()
        self.started: list[Callable[[], None]] = []
        self.threads: list[str] = []
        patch.setattr(dispatch, "start_beside", self._start)
        self.waiters = Waiters(self.clock, QUORUM, lambda: cast(Subscriptions, self.heard))

    def _start(self, run: Callable[[], None], name: str) -> None:
        self.started.append(run)
        self.threads.append(name)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.waiters._listen(cast(Any, self.heard), self.waiters.queues)

    def waiter(self, channel: str = "k") -> Waiter:
        """Return a waiter that has joined, and asked once."""
        waiter = Waiter(self.waiters, channel)
        waiter.wait(0.0)
        self.turn(3)
        while not waiter.wakeups.empty():
            waiter.wakeups.get()
        return waiter

    def released(
        self,
        token: int = 1,
        by: Sequence[int] = range(QUORUM),
        channel: str = "k",
        listeners: int = 1,
    ) -> None:
        payload = f"{token} {listeners}".encode()
        self.heard.messages += [Message(node, channel, payload) for node in by]
        self.turn()
