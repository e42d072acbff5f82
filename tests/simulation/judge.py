"""The judge of a run: what must never be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import DRIFT_FACTOR, majority

from .process import Process
from .servers import Server, short
from .world import World

_WOKEN_WITHIN_S = 0.5
"""Splits among those that ask at once included. Who is not woken asks once a second."""


class Violation(Exception):
    """A promise of the lock is broken.

    Attributes:
        kind: Which one.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


@dataclass(slots=True, eq=False)
class _Held:
    lease: Lease
    process: Process
    orphaned_at: float = math.inf
    """When its lock delay has begun, if the main process releases it for a dead one, seconds."""


class Judge:
    """The judge.

    Args:
        world: Time.
        servers: The nodes.
        judges_exclusion: Whether validity windows must not overlap.
        judges_wakeups: Whether waiters must soon hear of a release.

    Attributes:
        acquired: Number of leases.
    """

    def __init__(
        self, world: World, servers: list[Server], *, judges_exclusion: bool, judges_wakeups: bool
    ) -> None:
        self.acquired = 0
        self.quorum = majority(len(servers))
        self.world = world
        self._servers = servers
        self._judges_exclusion = judges_exclusion
        self._judges_wakeups = judges_wakeups
        self._free_since: dict[str, float] = {}
        self._held: dict[str, list[_Held]] = {}
        self._highest: dict[str, int] = {}
        self._tokens: set[tuple[str, int]] = set()
        self._released: dict[str, str] = {}
        self._acquired_at: dict[str, float] = {}
        for server in servers:
            server.on_set = self._note_set

    def highest(self, key: str) -> int:
        """Return the highest token of the leases on `key` that were acquired so far."""
        return self._highest.get(key, 0)

    def note_acquired(
        self, process: Process, lease: Lease, before: int, waited_since: float
    ) -> None:
        """Judge a new lease.

        Args:
            process: Holder.
            lease: The lease.
            before: `highest` before its attempt.
            waited_since: Time from which the holder waited for it, seconds.
        """
        self.acquired += 1
        self._judge_wakeup(lease.key, waited_since)
        key, token = lease.key, lease.token
        if (key, token) in self._tokens:
            self.fail("token", f"{token} was given twice for {key!r}")
        if token <= before:
            self.fail("token", f"{token} of {key!r} is not above {before}, acquired before")
        self._tokens.add((key, token))
        self._acquired_at[lease.owner] = self.world.time
        self._highest[key] = max(self._highest.get(key, 0), token)
        held = self._held.setdefault(key, [])
        held.append(_Held(lease, process))
        self._judge_delays(held)
        if len(held) > 1:
            self.look()

    def _judge_delays(self, held: list[_Held]) -> None:
        """Judge whether a lock was acquired too soon after a lease that was not released."""
        *before, new = held
        if not self._judges_exclusion or self._is_over(new):
            return
        for one in before:
            delay = one.lease.lock_delay_ms / 1000 * (1 - DRIFT_FACTOR)
            ended_at = one.process.true_time(one.lease.deadline)
            if one.orphaned_at < math.inf:
                ended_at = one.orphaned_at
            early = ended_at + delay - self.world.time
            if delay and early > 0:
                self.fail("delay", f"{one.lease.key!r} is acquired {early:.6f} s too early")

    def note_superseded(self, process: Process, owner: str | None) -> None:
        """Note that a process has replaced an owner: its own lease ends with that.

        After the deadline, that does not end the lock delay.
        """
        for held in self._held.values():
            held[:] = [
                one
                for one in held
                if one.lease.owner != owner or one.process is not process or self._is_over(one)
            ]

    def note_orphan(self, lease: Lease) -> None:
        """Note that a main process is about to release the lease of a process that has died.

        The lock delay begins with the death, or with the deadline if that was before.
        """
        held = self._held.get(lease.key, [])
        for one in list(held):
            if one.lease.owner != lease.owner or not one.process.is_dead:
                continue
            ended_at = min(one.process.died_at, one.process.true_time(lease.deadline))
            one.orphaned_at = min(one.orphaned_at, ended_at)
            # Without a token it is known as an attempt: no body has begun.
            if not (one.lease.lock_delay_ms and lease.token):
                held.remove(one)

    def note_reserved(self, key: str) -> None:
        """Note a reservation, of whose end waiters are not told."""
        self._free_since.pop(key, None)

    def _judge_wakeup(self, key: str, waited_since: float) -> None:
        free_since = self._free_since.pop(key, None)
        if free_since is None or free_since <= waited_since or not self._judges_wakeups:
            return
        took = self.world.time - free_since
        if took > _WOKEN_WITHIN_S:
            self.fail("wakeup", f"{key!r} was free for {took:.3f} s while somebody waited")

    def note_releasing(self, lease: Lease) -> None:
        """Note that the holder of a lease is about to release it."""
        held = self._held.get(lease.key, [])
        # One that has died does nothing more, and its lease is valid until its deadline. After the
        # deadline a release does not end the lock delay.
        held[:] = [
            one
            for one in held
            if one.lease is not lease or one.process.is_dead or self._is_over(one)
        ]

    def _is_valid(self, one: _Held) -> bool:
        # The most frequent question of all: most are over by their deadlines.
        now, lease = self.world.time, one.lease
        ends_at = lease.deadline / one.process.rate
        return ends_at > now and one.orphaned_at > now and not lease.backing.is_lost

    def _is_over(self, one: _Held) -> bool:
        ends_at = one.process.true_time(one.lease.deadline)
        return min(ends_at, one.orphaned_at) <= self.world.time

    def note_released(self, lease: Lease) -> None:
        """Note that a majority has confirmed a release."""
        if lease.lock_delay_ms:
            return  # released late, the lock stays for its delay
        self._released[lease.owner] = lease.key
        # The next holder may be told before this one that the lock is released.
        if lease.token and lease.token >= self.highest(lease.key):
            self._free_since[lease.key] = self.world.time
        self._look_for_revived(lease.owner)

    def note_extended(self, lease: Lease, *, was_lost: bool) -> None:
        """Judge an extension that succeeded; `was_lost`: before it, the lease was over."""
        if was_lost:
            self.fail("loss", f"{lease.key!r} of {short(lease.owner)} was lost, and extended")
        self.look()

    def look(self) -> None:
        """Judge which leases are valid now."""
        if not self._judges_exclusion:
            return
        is_crowded = False
        for key, held in self._held.items():
            if len(held) < 2:
                continue
            is_crowded = True
            valid = [one for one in held if self._is_valid(one)]
            if len(valid) > 1:
                names = ", ".join(
                    f"{one.process.name} ({short(one.lease.owner)}, until "
                    f"{one.process.true_time(one.lease.deadline) - 1000:.6f})"
                    for one in valid
                )
                self.fail("exclusion", f"{key!r} is held by {names}")
        # Where no key has several, none can become valid beside another.
        self.world.after_switch = self.look if is_crowded else None

    def fail(self, kind: str, text: str) -> None:
        """End the run with a violation, unless it has one already."""
        # Not raised: the code that is judged would handle it.
        self.world.error = self.world.error or Violation(kind, text)

    def _note_set(self, key: str, owner: str) -> None:
        if owner in self._released:
            self._look_for_revived(owner)

    def _look_for_revived(self, owner: str) -> None:
        key = self._released[owner]
        # An EXTEND on its way may heal a node that has forgotten, where it knows of no release.
        acquired_at = self._acquired_at.get(owner, -math.inf)
        having = [
            server.name
            for server in self._servers
            if server.lock_owner(key) == owner and server.forgot_at < acquired_at
        ]
        if len(having) >= self.quorum:
            self.fail("release", f"{key!r} of {short(owner)} is back on {having}")
