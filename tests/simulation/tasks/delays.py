"""Until when locks may stay on the nodes after their releases: for a lock delay, and no longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_redlock.pools.keeper_client import KeeperClient
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import DRIFT_FACTOR
from tests.simulation.judge import Judge
from tests.simulation.process import Process
from tests.simulation.servers import Server, short
from tests.simulation.world import World

from .schedule import FORGETTING, Traffic

_ROUNDED_S = 0.002
"""Redis counts expiries in ms."""
_AT_ONCE = 0.0


class Delays:
    """What the releases of leases with a lock delay promise: when the lock is free.

    That it is not free before, `Judge` judges.

    Args:
        world: Time.
        judge: What judges leases.
        servers: The nodes.
        traffic: The schedule.
    """

    def __init__(
        self, world: World, judge: Judge, servers: Sequence[Server], traffic: Traffic
    ) -> None:
        self._world = world
        self._judge = judge
        self._servers = servers
        self._delay = traffic.lock_delay
        # What was on its disk, a node has again.
        self._remembers = all(fault.kind not in FORGETTING for fault in traffic.faults)
        self._until: dict[str, float] = {}
        self._left: set[str] = set()
        self._orphans: set[str] = set()

    def may_stay(self, owner: str) -> bool:
        """Return whether a lock stays for its delay after its release."""
        return self._until.get(owner, _AT_ONCE) > _AT_ONCE

    def watch(self, process: Process, client: KeeperClient) -> None:
        """Hear of releases that a pool process leaves to the main process."""
        watched: Any = client

        def leave_release(lease: Lease, *how: Any) -> None:
            KeeperClient.leave_release(client, lease, *how)
            if not process.is_dead:
                self._left.add(lease.owner)

        watched.leave_release = leave_release

    def note_releasing(self, process: Process, lease: Lease) -> float:
        """Note that a run, or who has acquired for nothing, is about to release; return the time.

        Before the deadline, that frees the lock at once.
        """
        now, ends_at = self._world.time, process.true_time(lease.deadline)
        if self._delay and lease.lock_delay_ms and not process.is_dead:
            self._until.setdefault(lease.owner, ends_at + self._delay if ends_at <= now else 0.0)
        return now

    def note_orphan(self, process: Process, lease: Lease) -> float:
        """Note that the main process is about to release a dead one's lease; return the time.

        What a run has left, be it late, is kept no longer than by the run.
        """
        now, owner = self._world.time, lease.owner
        if self._delay and lease.token and owner not in self._left | self._orphans:
            self._orphans.add(owner)
            self._until[owner] = min(now, process.true_time(lease.deadline)) + self._delay
        return now

    def note_released(self, process: Process, lease: Lease, began: float) -> None:
        """Judge, now or later, whether a release that a majority has confirmed frees the lock.

        Args:
            process: Who has released it.
            lease: The lease.
            began: When the release began, seconds.
        """
        owner, now = lease.owner, self._world.time
        if owner not in self._until or not self._remembers:
            return
        ends_at = process.true_time(lease.deadline)
        is_by_run = owner not in self._orphans | self._left
        if is_by_run and ends_at <= now and process.last_struck >= began:
            # It may have stood still before it looked at the clock, and have been late.
            self._until[owner] = max(self._until[owner], ends_at + self._delay)
        until = self._until[owner]
        if until:
            # How long the lock is kept is told as the release begins; a node may hear it last.
            until += self._delay * DRIFT_FACTOR + now - began + _ROUNDED_S
        self._world.at(max(until, now), self._judge_free, lease)

    def _judge_free(self, lease: Lease) -> None:
        owners = [server.lock_owner(lease.key) for server in self._servers]
        if owners.count(lease.owner) >= self._judge.quorum:
            self._judge.fail("stays", f"{lease.key} of {short(lease.owner)} is released, and stays")
