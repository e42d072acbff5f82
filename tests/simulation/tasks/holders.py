"""Who has held which lock, as the processes that ask for locks know it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.messages.reservation import is_pending_slot_key
from celery_redlock.redlock.lease import Lease, is_reservation, task_of
from celery_redlock.redlock.task_lock import TaskLock
from tests.simulation.judge import Judge
from tests.simulation.process import Process
from tests.simulation.schedule import MAX_TTL_S
from tests.simulation.servers import Server, short
from tests.simulation.world import World

from .delays import Delays

_UNCLEAN_S = 2 * MAX_TTL_S
"""Time for which nodes may still have a lock after its attempt failed, besides its ttl."""


class Holders:
    """Owners of locks, from their first request until nodes can't have them any more.

    Args:
        world: Time.
        judge: What judges leases.
        servers: The nodes.
        delays: What hears of releases, for their lock delays.

    Attributes:
        done: When a quorum confirmed a done mark first, by its label, seconds.
    """

    def __init__(
        self, world: World, judge: Judge, servers: Sequence[Server], delays: Delays
    ) -> None:
        self.done: dict[str, float] = {}
        self._world = world
        self._judge = judge
        self._servers = servers
        self._delays = delays
        self._owners: dict[str, tuple[float, float]] = {}
        self._slots_left: dict[Process, float] = {}
        self._asked: dict[Process, list[tuple[str, str]]] = {}
        self._attempted_at: dict[str, float] = {}

    def knows(self, owner: str) -> bool:
        """Return whether anybody has asked for a lock as this owner."""
        return owner in self._owners

    def is_done_before(self, label: str, owner: str) -> bool:
        """Return whether a done mark was confirmed before the attempt of this owner began."""
        return self.done.get(label, math.inf) <= self._attempted_at.get(owner, -math.inf)

    def held_since(self, time: float, owner: str) -> bool:
        """Return whether nodes may have had this owner between then and now."""
        since, until = self._owners.get(owner, (math.inf, 0.0))
        return until >= time and since <= self._world.time

    def has_ended(self, owner: str) -> bool:
        """Return whether this owner was released or replaced by a living process."""
        return self._owners[owner][1] < math.inf

    def has_left_slot(self, process: Process, since: float) -> bool:
        """Return whether a process has released a pending slot that it held, since then."""
        return self._slots_left.get(process, -math.inf) >= since

    def forget_asked(self, process: Process) -> None:
        """Forget which locks a process has asked for."""
        self._asked[process] = []

    def held_by(self, process: Process) -> str:
        """Return the key of a lease that a process has asked for and a majority has; "": none.

        Not of one that was released late, and stays for its lock delay.
        """
        for key, owner in self._asked.get(process, ()):
            if self._delays.may_stay(owner):
                continue
            having = [server for server in self._servers if server.lock_owner(key) == owner]
            if len(having) >= self._judge.quorum:
                return key
        return ""

    def is_reserved(self, task_id: str) -> bool:
        """Return whether a majority of the nodes has a reservation of this task."""
        having = [
            server
            for server in self._servers
            if any(is_reservation(one) and task_of(one) == task_id for one in server.owners())
        ]
        return len(having) >= self._judge.quorum

    def left_by(self, process: Process) -> list[Lease]:
        """Return the leases that a process holds, or held as it died."""
        held = [one for ones in self._judge._held.values() for one in ones]
        return [one.lease for one in held if one.process is process]

    def is_held(self, lease: Lease) -> bool:
        """Return whether a majority of the nodes has a lease."""
        owners = [server.lock_owner(lease.key) for server in self._servers]
        return owners.count(lease.owner) >= self._judge.quorum

    def watch_keeper(self, process: Process, redlock: TaskLock) -> None:
        """Hear of what the keeper of a pool releases: leases of children that are dead."""
        lock: Any = redlock

        def release(lease: Lease, **how: Any) -> None:
            self._judge.note_orphan(lease)
            began = self._delays.note_orphan(process, lease)
            try:
                TaskLock.release(redlock, lease, **how)
            finally:
                self._end(process, lease.owner, _UNCLEAN_S)
            if lease.token:  # of an attempt, the grant may still arrive: it is released again
                self._delays.note_released(process, lease, began)
                if not self._delays.may_stay(lease.owner):
                    self._judge.note_released(lease)

        lock.release = release

    def is_of(self, key: str, task_id: str) -> bool:
        """Return whether a majority of the nodes names this task as the holder of a lock."""
        owners = [server.lock_owner(key) for server in self._servers]
        return sum(task_of(owner) == task_id for owner in owners) >= self._judge.quorum

    def watch(self, process: Process, redlock: TaskLock) -> None:
        """Hear of what this lock acquires and releases."""
        lock: Any = redlock

        def release(lease: Lease, **how: Any) -> None:
            self._judge.note_releasing(lease)
            began = self._delays.note_releasing(process, lease)
            try:
                TaskLock.release(redlock, lease, **how)
            finally:
                self._end(process, lease.owner, _UNCLEAN_S)
            self._delays.note_released(process, lease, began)
            self._judge.note_released(lease)

        def release_owner(key: str, owner: str) -> bool:
            try:
                was_held = TaskLock.release_owner(redlock, key, owner)
            finally:
                self._end(process, owner, _UNCLEAN_S)
            if was_held and is_pending_slot_key(key):
                self._slots_left[process] = self._world.time
            return was_held

        def mark_done(key: str, label: str) -> None:
            TaskLock.mark_done(redlock, key, label)
            self.done.setdefault(label, self._world.time)

        lock.acquire_for_task = self._asking(process, redlock.acquire_for_task, is_lease=True)
        lock.reserve = self._asking(process, redlock.reserve, is_lease=False)
        lock.release, lock.release_owner, lock.mark_done = release, release_owner, mark_done

    def _asking(
        self, process: Process, ask: Callable[..., Lease], *, is_lease: bool
    ) -> Callable[..., Lease]:
        judge, world = self._judge, self._world

        def asked(key: str, ttl: float, **how: Any) -> Lease:
            before, began = 0, world.time
            owners: list[str] = []
            on_attempt = how.pop("on_attempt", None)

            def note(owner: str) -> None:
                nonlocal before
                before = judge.highest(key)
                owners.append(owner)
                if is_lease:
                    self._asked.setdefault(process, []).append((key, owner))
                self._owners[owner] = (world.time, math.inf)
                self._attempted_at[owner] = world.time
                if on_attempt:
                    on_attempt(owner)

            if not is_lease:
                # A run that hands its lock over has ended, even if its process dies meanwhile.
                judge.note_superseded(process, how.get("supersedes"))
            try:
                lease = ask(key, ttl, on_attempt=note, **how)
            finally:
                for owner in owners:
                    self._end(process, owner, ttl + _UNCLEAN_S)
            self._owners[lease.owner] = (began, math.inf)
            judge.note_superseded(process, how.get("supersedes"))
            if how.get("supersedes") in self._owners:
                self._end(process, str(how["supersedes"]), _UNCLEAN_S)
            if is_lease:
                judge.note_acquired(process, lease, before, began)
            world.note(f"{process.name} has {key} {short(lease.owner)} {lease.token}")
            return lease

        return asked

    def _end(self, process: Process, owner: str, after: float) -> None:
        if process.is_dead:
            return  # what it asked for last may never be done
        since, _ = self._owners.get(owner, (0.0, 0.0))
        self._owners[owner] = (since, self._world.time + after)
