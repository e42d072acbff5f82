"""A keeper on a stage: its nodes, its thread and its time are the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import validity_ms
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.threads.wakeup import Wakeup
from celery_redlock.redlock.unsettled import ReleaseRequest

from .fake_clock import FakeClock

TTL = 30.0
PERIOD = TTL / 3


class Stage:
    """A keeper, the nodes it talks to, and those it tells.

    Attributes:
        rounds: When each extension was made, and of which leases.
        lost: Whom it was told to be lost.
        answer: What the nodes do in an extension.
        threads: What the keeper wanted to run on threads.
        times_given: How long each extension was allowed to take, seconds.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        in_this_thread(
            monkeypatch, dispatch, "start_thread", lambda run, name: self.threads.append(run)
        )
        self.clock = FakeClock()
        self.rounds: list[tuple[float, list[Lease]]] = []
        self.lost: list[Lease] = []
        self.threads: list[Callable[[], None]] = []
        self.answer: Callable[[Sequence[Lease]], None] = self.renew
        self.times_given: list[float] = []
        self.keeper = Keeper(self.clock, self.extend, self.lost.append)

    def extend(self, leases: Sequence[Lease], timeout: float) -> None:
        self.times_given.append(timeout)
        self.rounds.append((self.clock.now(), list(leases)))
        self.answer(leases)

    def renew(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            lease.deadline = self.clock.now() + validity_ms(lease.ttl_ms, 0) / 1000

    def refuse(self, leases: Sequence[Lease], timeout: float = 0.0) -> None:
        """Do nothing: no quorum."""

    def fail(self, leases: Sequence[Lease]) -> None:
        raise ZeroDivisionError

    def lease(self, key: str = "k", ttl: float = TTL, max_hold: float | None = None) -> Lease:
        now = self.clock.now()
        lease = Lease(key, key, 7, round(ttl * 1000), 0.0, self.clock, acquired_at=now)
        lease.deadline = now + validity_ms(lease.ttl_ms, 0) / 1000
        lease.hold_until = None if max_hold is None else now + max_hold
        return lease

    def keep(self, key: str = "k", ttl: float = TTL, max_hold: float | None = None) -> Lease:
        lease = self.lease(key, ttl, max_hold)
        self.keeper.keep(lease)
        return lease

    def released(self) -> list[tuple[float, str]]:
        """Return what will be released, and when; every release is confirmed."""
        made: list[tuple[float, str]] = []

        def release(releases: Sequence[ReleaseRequest], timeout: float) -> list[bool]:
            made.extend((self.clock.now(), one.owner) for one in releases)
            return [True] * len(releases)

        self.keeper = Keeper(self.clock, self.extend, self.lost.append, release=release)
        return made

    def tick_for(self, seconds: float) -> None:
        """Let the keeper come whenever it wants to, for so long."""
        end = self.clock.now() + seconds
        for _ in range(100_000):
            wakes_at = self.keeper.tick()
            if wakes_at > end:
                self.clock.time = end
                return
            self.clock.time = max(wakes_at, self.clock.time)
        pytest.fail("the keeper comes again and again without any time passing")

    def times(self) -> list[float]:
        """When each extension was made, since the start."""
        return [time - 1000.0 for time, _ in self.rounds]


def in_this_thread(
    monkeypatch: pytest.MonkeyPatch, target: object, name: str, function: Callable[..., Any]
) -> None:
    """Replace `target.name` for this thread only.

    The keepers of earlier tests may still be there, in threads of their own.
    """
    original, ident = getattr(target, name), threading.get_ident()

    def either(*args: Any) -> Any:
        return (function if threading.get_ident() == ident else original)(*args)

    monkeypatch.setattr(target, name, either)


class VirtualWakeup:
    """Stands in for the wait of the keeper's thread: time passes, nobody waits."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.stage = stage
        self.end = float("inf")
        self.meanwhile: Callable[[], object] = lambda: None

        in_this_thread(monkeypatch, Wakeup, "wait", self.wait)

    def wait(self, wakeup: Wakeup, seconds: float) -> bool:
        """Let the time pass, and stop the keeper at the end."""
        self.waits += 1
        self.meanwhile()
        if wakeup.clear():
            return True
        self.stage.clock.move(max(0.0, seconds))
        if self.waits > 10_000 or self.stage.clock.now() >= self.end:
            self.stage.keeper.stop()
        return wakeup.clear()

    def run_for(self, seconds: float) -> None:
        """Run the keeper's newest thread in this one."""
        self.end = self.stage.clock.now() + seconds
        self.stage.threads[-1]()
