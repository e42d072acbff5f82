"""One run of a schedule of calls: from the first publication until nothing is left."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from celery_redlock.config import app_lock
from celery_redlock.execution import running
from celery_redlock.execution.running import deferred_to_main
from celery_redlock.redlock.errors import LockHeld
from celery_redlock.redlock.lease import is_reservation
from celery_redlock.signals import lock_conflict
from tests.simulation.faults import Faults
from tests.simulation.installation import Simulated
from tests.simulation.judge import Violation
from tests.simulation.process import Process
from tests.simulation.run import Outcome, Run
from tests.simulation.schedule import HORIZON_S, RATE, Client, Fault
from tests.simulation.servers import short

from .apps import App, Part
from .broker import Broker
from .delays import Delays
from .holders import Holders
from .judge import TaskJudge
from .prefork import Pool
from .schedule import (
    DROP,
    KILL,
    ON_BROKER,
    QUEUE_TTL_S,
    REFUSE,
    RESERVING,
    RESERVING_SLOT,
    SWALLOW,
    Traffic,
)
from .worker import Caller, Worker

_CALMS_AT = 1000.0 + HORIZON_S + 2.0
_BOUND_S = 120.0
"""In this time after the last fault each message has ended: pauses, done marks, and all turns."""
_RESERVED_S = QUEUE_TTL_S + 10.0
"""Longest time for which a reservation outlives its message, if a caller has died."""


class TaskRun(Run):
    """One run of calls.

    Args:
        simulated: Where the ways of processes to nodes are noted.
        traffic: What is to happen.
        apps: An app for each process.
        is_traced: Whether what happens is noted.
    """

    def __init__(
        self, simulated: Simulated, traffic: Traffic, apps: Sequence[App], *, is_traced: bool
    ) -> None:
        self._traffic = traffic
        self._apps = apps
        self._broker: Any = None
        self._pool: Pool | None = None
        super().__init__(simulated, traffic, is_traced=is_traced, guard=True)
        self.world.at(_CALMS_AT, self._calm)
        self.world.at(_CALMS_AT + _BOUND_S, self._judge_bound, _BOUND_S)

    def outcome(self) -> Outcome:
        """Return what became of the run."""
        lock_conflict.connect(self._on_conflict)
        try:
            outcome = super().outcome()
        finally:
            lock_conflict.disconnect(self._on_conflict)
            for app in self._apps:
                app_lock._redlocks.pop(app, None)
                app.kernel.pool = None
        outcome.endings = self._tasks.endings
        return outcome

    def start(self, client: Client, process: Process) -> None:
        """Let the client call, or a worker work."""
        number = len(self.processes) - 1
        app = self._apps[number]
        traffic = self._traffic
        task = app.task_of(traffic)
        if not number:
            self._prepare()
        redlock = self.new_lock(process)
        if traffic.is_prefork and number == traffic.callers:
            self._locks.watch_keeper(process, redlock)
            app.part = Part()
            app.part.process = process
            self._pool = pool = Pool(app.kernel, process, redlock)
            process.main = self.world.start(
                process, "main", lambda: pool.work(self._tasks.have_ended)
            )
            return
        app_lock._redlocks[app] = redlock
        self._locks.watch(process, redlock)
        if number < traffic.callers:
            app.part = caller = Caller(process, self._broker, self._tasks)
            self._tasks.callers.append(caller)
            calls = [one for one in enumerate(traffic.calls) if one[0] % traffic.callers == number]
            process.main = self.world.start(process, "main", lambda: caller.call(task, calls))
            return
        app.part = worker = Worker(
            process, app, redlock, self._broker, self._tasks, self._traffic.prefetch
        )
        self._tasks.workers.append(worker)
        if self._pool:
            self._delays.watch(process, self._pool.add(process, redlock))
        is_last = number == len(self._traffic.clients) - 1
        if is_last:
            for task_id, call in enumerate(traffic.calls):
                if call.revoked_after:
                    self.world.at(
                        1000.0 + call.at + call.revoked_after, self._revoke, f"t{task_id}"
                    )
        begins_at = _CALMS_AT if is_last else 0.0
        process.main = self.world.start(process, "main", lambda: worker.work(begins_at))

    def _prepare(self) -> None:
        chance = random.Random(self._traffic.seed + 1)
        visibility = self._traffic.visibility
        self._broker = Broker(self.world, visibility, chance, self.struck)
        self._delays = Delays(self.world, self.judge, self.servers, self._traffic)
        self._locks = Holders(self.world, self.judge, self.servers, self._delays)
        self._tasks = TaskJudge(
            self.world, self._traffic, self._broker, self._locks, _CALMS_AT, self.processes
        )
        for app in self._apps:
            app.conf.broker_transport_options = (
                {"visibility_timeout": visibility} if visibility else {}
            )

    def _on_conflict(self, task_id: str, error: LockHeld, outcome: str, **how: Any) -> None:
        if how.get("at") == "publish":
            self._tasks.note_duplicate(task_id, error)
        else:
            self._tasks.note_conflict(task_id, error, outcome)

    def _revoke(self, task_id: str) -> None:
        self._tasks.note_revoked(task_id)
        for worker in self._tasks.workers:
            worker.revoked.add(task_id)

    # ---- faults

    def strike(self, struck: tuple[Faults, Fault]) -> None:
        """Begin a fault, perhaps of the broker, or a death."""
        fault = struck[1]
        if fault.kind == KILL:
            self._kill(self.processes[fault.client])
            return
        if fault.kind not in ON_BROKER:
            super().strike(struck)
            return
        self.struck[fault.kind] += 1
        self.world.note(f"fault {fault.kind} {fault.lasts:g} s of the broker")
        if fault.kind == REFUSE:
            self._broker.refuse(fault.lasts)
        elif fault.kind == SWALLOW:
            self._broker.swallow(self.processes[fault.client], fault.lasts)
        elif fault.kind == DROP and not self.processes[fault.client].is_dead:
            self._tasks.workers[fault.client - self._traffic.callers].reconnect()

    def _kill(self, process: Process) -> None:
        if not process.is_dead:
            self.struck[KILL] += 1
            self.world.note(f"{process.name} is killed")
            process.struck.append("crash")
            process.die()

    def _calm(self, _: Any) -> None:
        for process in self.processes:
            process.stop_strikes()
        self._tasks.is_over()

    def _judge_bound(self, bound: float) -> None:
        if self._tasks.is_over():
            return
        if self._may_wait_for_the_dead() and bound == _BOUND_S:
            self.world.at(self.world.time + QUEUE_TTL_S, self._judge_bound, bound + QUEUE_TTL_S)
            return
        raise Violation("progress", f"{bound:g} s later, there are {self._broker.left()}")

    def _may_wait_for_the_dead(self) -> bool:
        """Return whether a message may wait for a reservation that nobody could release."""
        is_interrupted = self._tasks.has_faults or any(one.is_dead for one in self.processes)
        return self._traffic.lifetime in (RESERVING, RESERVING_SLOT) and is_interrupted

    # ---- what is left

    def look_for_rest(self) -> None:
        """Judge how each call has ended, and what is left on nodes and in processes."""
        self.look_for_work()
        self._tasks.judge_end()
        if self.world.error:
            raise self.world.error
        alive = {one.name for one in self.processes if not one.is_dead}
        left = [request.id for request in running.executions if request.hostname in alive]
        if left or deferred_to_main:
            raise Violation("rest", f"executions of {left} are left in a process")
        if not (self._tasks.has_faults or any(one.is_dead for one in self.processes)):
            self._look_for_reservations()
        self.world.time += _RESERVED_S * (1 + 2 * RATE)
        for server in self.servers:
            if keys := server.locked():
                raise Violation("rest", f"{keys} stay on {server.name}")

    def _look_for_reservations(self) -> None:
        """Judge what is left though no node was struck and no process has died.

        A node may keep a reservation for its ttl if the grant arrived after the release, or if the
        connection was not made yet when the reservation was released or replaced. That is less
        than a majority, so it holds nobody up; and no lease is left so.
        """
        left: dict[str, list[str]] = {}
        for server in self.servers:
            for key, owner in zip(server.locked(), server.owners(), strict=True):
                if not self._delays.may_stay(owner):
                    left.setdefault(key, []).append(owner)
        for key, owners in left.items():
            is_rest = all(is_reservation(one) and self._locks.has_ended(one) for one in owners)
            if not is_rest or len(owners) > len(self.servers) - self.judge.quorum:
                raise Violation("rest", f"{key} stays: {[short(one) for one in owners]}")
