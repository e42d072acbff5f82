"""A lock whose one node is a dict: what becomes of a key is decided in this process."""

from __future__ import annotations

import math
from typing import Any

from celery_redlock.redlock import Lease
from celery_redlock.redlock.acquisition import OnAttempt
from celery_redlock.redlock.errors import AlreadyDone, LockHeld, QuorumUnavailable
from celery_redlock.redlock.lease import holder_of, new_owner
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.validation import lease_times_ms
from celery_redlock.redlock.waiting import OnWait

from .fake_clock import FakeClock


class _NoKeeper:
    def keep(self, lease: Lease, holder: object = None, **hooks: object) -> None:
        pass

    def forget(self, lease: Lease) -> None:
        pass

    def stop(self) -> None:
        pass


class OneNode(TaskLock):
    """Grants at once, or refuses at once: nothing expires unless the clock is moved.

    Attributes:
        held: Owner and end of each key.
        done: The done marks: of which key, and their labels.
        marked_for_long: Those that stand for long: Celery has stored the result.
        done_for: How long a done mark still stands, seconds.
        is_up: Whether the node answers.
        unanswered: Keys for which it does not answer.
        split: Keys that no attempt has won, though each is held.
        began: When the lease of a key began.
        dropped: By whom the lock of an owner was released.
    """

    clock: FakeClock

    def __init__(self) -> None:
        super().__init__(["redis://127.0.0.1:1"], clock=FakeClock())
        self.keeper: Any = _NoKeeper()
        self.held: dict[str, tuple[str, float]] = {}
        self.done: set[tuple[str, str]] = set()
        self.marked_for_long: set[tuple[str, str]] = set()
        self.done_for = 3600.0
        self.is_up = True
        self.unanswered: set[str] = set()
        self.split: set[str] = set()
        self.began: dict[str, float] = {}
        self.dropped: dict[str, str] = {}
        self._token = 0

    def owner_of(self, key: str) -> str | None:
        owner, ends = self.held.get(key, ("", -math.inf))
        return owner if ends > self.clock.now() else None

    def acquire(
        self, key: str, ttl: float = 30.0, *, wait: float | None = None, label: str | None = None,
        **_: Any,
    ) -> Lease:  # fmt: skip
        return self.acquire_for_task(key, ttl, wait=wait, label=label)

    def acquire_for_task(
        self, key: str, ttl: float = 30.0, *, wait: float | None = None, label: str | None = None,
        publication: str = "", supersedes: str | None = None, unless_done: tuple[str, ...] = (),
        on_attempt: OnAttempt | None = None, on_wait: OnWait | None = None,
        is_successor: bool = False, lock_delay: float = 0.0,
    ) -> Lease:  # fmt: skip
        lease_times_ms(key, ttl, lock_delay, self.max_ttl)
        until = self.clock.now() + (wait or 0.0)
        while True:
            if any((key, label) in self.done for label in unless_done):
                raise AlreadyDone(key, self.done_for)
            owner = new_owner(label, publication=publication)
            if on_attempt:
                on_attempt(owner)
            try:
                lease = self._take(key, owner, ttl, supersedes)
            except LockHeld as held:
                left = until - self.clock.now()
                if left <= 0:
                    raise
                if on_wait:
                    on_wait()
                # The wait takes no time: the clock is moved.
                self.clock.move(min(left, held.remaining))
            else:
                self._token += 1
                lease.token = self._token
                return lease

    def reserve(
        self, key: str, ttl: float, *, label: str | None = None, publication: str = "",
        supersedes: str | None = None, owner: str | None = None, is_period: bool = False,
        on_attempt: OnAttempt | None = None, **_: Any,
    ) -> Lease:  # fmt: skip
        owner = owner or new_owner(
            label, publication=publication, is_reservation=True, is_period=is_period
        )
        if on_attempt:
            on_attempt(owner)
        return self._take(key, owner, ttl, supersedes)

    def release(
        self, lease: Lease, *, keep: float = 0.0, done: str | None = None, **_: Any
    ) -> None:
        self.keeper.forget(lease)
        lease.is_released = True
        if done:
            done.encode()
            self.done.add((lease.key, done))
        self.release_owner(lease.key, lease.owner)

    def mark_done(self, key: str, label: str) -> None:
        self.done.add((key, label))
        self.marked_for_long.add((key, label))

    def release_owner(self, key: str, owner: str) -> bool:
        self._ask(key, "release", owner)
        stood = self.owner_of(key) == owner
        if stood:
            del self.held[key]
        return stood

    def drop_owner(self, key: str, owner: str, author: str) -> bool:
        self.dropped[owner] = f"it was released by {author}"
        return self.release_owner(key, owner)

    def why_dropped(self, lease: Lease) -> str | None:
        return self.dropped.get(lease.owner)

    def read_holder(self, key: str) -> LockHeld | None:
        self._ask(key, "look at")
        holder = self.owner_of(key)
        return self._held(key, holder) if holder else None

    def _take(self, key: str, owner: str, ttl: float, supersedes: str | None) -> Lease:
        self._ask(key, "lock", owner, supersedes or "")
        holder, now = self.owner_of(key), self.clock.now()
        if holder and holder not in (owner, supersedes):
            raise self._held(key, holder)
        self.held[key] = owner, now + ttl
        return Lease(
            key, owner, 0, round(ttl * 1000), now + ttl, self.clock, acquired_at=now,
            took_over=holder is not None,
        )  # fmt: skip

    def _held(self, key: str, holder: str) -> LockHeld:
        remaining = self.held[key][1] - self.clock.now()
        age = self.clock.now() - self.began[key] if key in self.began else None
        return LockHeld(key, holder_of(holder), remaining, key in self.split, owner=holder, age=age)

    def _ask(self, key: str, action: str, *said: str) -> None:
        for text in (key, *said):
            text.encode()  # as on the way to a server
        if not self.is_up or key in self.unanswered:
            raise QuorumUnavailable(key, {"127.0.0.1:1": "down"}, 1, action)
