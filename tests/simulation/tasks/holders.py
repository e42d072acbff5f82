"""Who has held which lock, as the processes that ask for locks know it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.redlock.lease import Lease, is_reservation, task_of
from celery_redlock.redlock.task_lock import TaskLock
from tests.simulation.judge import Judge
from tests.simulation.process import Process
from tests.simulation.schedule import MAX_TTL_S
from tests.simulation.servers import Server, short
from tests.simulation.world import World

_UNCLEAN_S = 2 * MAX_TTL_S
"""Time for which nodes may still have a lock after its attempt failed, besides its ttl."""


class Holders:
    """Owners of locks, from their first request until nodes can't have them any more.

    Args:
        world: Time.
        judge: What judges leases.
        servers: The nodes.

    Attributes:
        done: Labels whose done marks a quorum has confirmed.
    """

    def __init__(self, world: World, judge: Judge, servers: Sequence[Server]) -> None:
        self.done: set[str] = set()
        self._world = world
        self._judge = judge
        self._servers = servers
        self._owners: dict[str, tuple[float, float]] = {}

    def knows(self, owner: str) -> bool:
        """Return whether anybody has asked for a lock as this owner."""
        return owner in self._owners

    def held_since(self, time: float, owner: str) -> bool:
        """Return whether nodes may have had this owner between then and now."""
        since, until = self._owners.get(owner, (math.inf, 0.0))
        return until >= time and since <= self._world.time

    def is_reserved(self, task_id: str) -> bool:
        """Return whether a majority of the nodes has a reservation of this task."""
        having = [
            server
            for server in self._servers
            if any(is_reservation(one) and task_of(one) == task_id for one in server.owners())
        ]
        return len(having) >= self._judge.quorum

    def watch(self, process: Process, redlock: TaskLock) -> None:
        """Hear of what this lock acquires and releases."""
        lock: Any = redlock

        def release(lease: Lease, **how: Any) -> None:
            self._judge.note_releasing(lease)
            try:
                TaskLock.release(redlock, lease, **how)
            finally:
                self._end(process, lease.owner, _UNCLEAN_S)
            self._judge.note_released(lease)

        def release_owner(key: str, owner: str) -> bool:
            try:
                return TaskLock.release_owner(redlock, key, owner)
            finally:
                self._end(process, owner, _UNCLEAN_S)

        def mark_done(key: str, label: str) -> None:
            TaskLock.mark_done(redlock, key, label)
            self.done.add(label)

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
                self._owners[owner] = (world.time, math.inf)
                if on_attempt:
                    on_attempt(owner)

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
