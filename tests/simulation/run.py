"""One run of a schedule: the real lock, from the first attempt until nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from celery_redlock.redlock.errors import QuorumUnavailable, RedlockError
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock

from .faults import Faults
from .installation import Simulated
from .judge import Judge, Violation
from .process import Process
from .schedule import (
    HORIZON_S,
    MAX_SKEW_S,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
    RATE,
    RESERVED_S,
    Client,
    Fault,
    Schedule,
    Use,
)
from .servers import Server, short
from .wire import Link
from .world import Crashed, Interrupted, Stuck, World

_BOUND_S = 60.0
"""In this time after the last fault each waiter has the lock: guard, back-off and all turns."""
_CALM_AFTER_S = HORIZON_S + 2.0
_IDLE_S = 3.0


@dataclass(slots=True)
class Outcome:
    """What became of a run.

    Attributes:
        violation: What went wrong; None: nothing.
        acquired: Number of leases.
        struck: Faults that struck, by kind.
        trace: What happened, if it was noted.
        endings: How messages have ended, counted.
    """

    violation: Violation | None = None
    acquired: int = 0
    struck: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)


def run(
    simulated: Simulated, schedule: Schedule, *, is_traced: bool = False, guard: bool = True
) -> Outcome:
    """Run a schedule."""
    return Run(simulated, schedule, is_traced=is_traced, guard=guard).outcome()


class Run:
    """One run of clients that use the lock.

    Args:
        simulated: Where the ways of processes to nodes are noted.
        schedule: What is to happen.
        is_traced: Whether what happens is noted.
        guard: Whether nodes that were restarted do not vote for a while.
    """

    def __init__(
        self, simulated: Simulated, schedule: Schedule, *, is_traced: bool, guard: bool
    ) -> None:
        self.schedule = schedule
        self.world = world = World(is_traced=is_traced)
        self.servers = [
            Server(world, f"n{number}", rate, ahead)
            for number, (rate, ahead) in enumerate(schedule.nodes)
        ]
        self.judge = Judge(
            world, self.servers, judges_exclusion=not schedule.has_steps,
            judges_wakeups=schedule.is_calm,
        )  # fmt: skip
        world.after_switch = self.judge.after_switch
        self.links: list[list[Link]] = []
        self.processes: list[Process] = []
        self.locks: list[tuple[Process, TaskLock]] = []
        self.struck: Counter[str] = Counter()
        self._guard = guard
        seeds = random.Random(schedule.seed)
        for number, client in enumerate(schedule.clients):
            chance = random.Random(seeds.getrandbits(64))
            process = Process(
                world, f"c{number}", client.rate, client.wall_ahead, client.wall_tick,
                [*client.strikes], chance,
            )  # fmt: skip
            links = [
                Link(server, random.Random(chance.getrandbits(64)), schedule.slowness)
                for server in self.servers
            ]
            for server, link in zip(self.servers, links, strict=True):
                simulated.links[process.name, server.name] = link
            self.links.append(links)
            self.processes.append(process)
            simulated.process = process
            self.start(client, process)
        faults = Faults(world, self.servers, self.links, schedule.slowness, self.struck)
        for fault in schedule.faults:
            world.at(1000.0 + fault.at, self.strike, (faults, fault))

    def start(self, client: Client, process: Process) -> None:
        """Let a client begin."""
        if not client.uses:
            return
        redlock = self.new_lock(process)
        redlock.release = _judged(self.judge, redlock)  # type: ignore[method-assign]
        body = _body(self, process, redlock, client)
        process.main = self.world.start(process, "main", body)

    def new_lock(self, process: Process) -> TaskLock:
        """Return the lock of a process."""
        redlock = TaskLock(
            [f"redis://{server.name}" for server in self.servers], node_timeout=NODE_TIMEOUT_S,
            max_ttl=MAX_TTL_S, max_clock_skew=MAX_SKEW_S, restart_guard=self._guard,
            idle_timeout=_IDLE_S, clock=process,
        )  # fmt: skip
        redlock.log = lambda event: None
        self.locks.append((process, redlock))
        return redlock

    def strike(self, struck: tuple[Faults, Fault]) -> None:
        """Begin a fault."""
        faults, fault = struck
        faults.strike(fault)

    def outcome(self) -> Outcome:
        violation = None
        try:
            self.world.run()
            self.look_for_rest()
        except Violation as seen:
            violation = seen
        except Stuck as error:
            violation = Violation("end", str(error))
        except Exception as error:  # noqa: BLE001  # of the code under test
            violation = Violation("error", repr(error))
        for process in self.processes:
            self.struck.update(process.struck)
        outcome = Outcome(violation, self.judge.acquired, self.struck, self.world.trace or [])
        self._forget()
        return outcome

    def _forget(self) -> None:
        """End what a violation has left suspended."""
        for process in self.processes:
            process.die()
        for task in list(self.world.tasks):
            # As whom it runs its last lines: each step of a process that is dead raises.
            self.world.current = task
            with suppress(BaseException):
                task.greenlet.throw(Crashed)
        self.world.current = None

    # ---- what is left

    def look_for_rest(self) -> None:
        """Judge what is left when nothing happens any more."""
        self.look_for_work()
        is_undisturbed = not self.struck and not any(one.struck for one in self.processes)
        has_crashed = any(one.is_dead for one in self.processes)
        if has_crashed:
            self.world.time += RESERVED_S * (1 + 2 * RATE)
        # The rest of a reservation may stay on a node that its release did not reach.
        allowed = 0 if is_undisturbed or has_crashed else len(self.servers) - self.judge.quorum
        for key in ("a", "b"):
            having = [one.name for one in self.servers if one.lock_owner(key)]
            if len(having) > allowed:
                raise Violation("rest", f"{key!r} stays on {having}")

    def look_for_work(self) -> None:
        """Judge whether a process that lives still has something to do."""
        if self.world.tasks:
            names = [
                f"{task.process.name} {task.name}"
                for task in self.world.tasks
                if not task.process.is_dead
            ]
            if names:
                raise Violation("rest", f"threads still wait: {names}")
        for process, redlock in self.locks:
            if not process.is_dead and (redlock.keeper.kept() or redlock.keeper._has_work()):
                raise Violation("rest", f"the keeper of {process.name} still has work")


def _body(run: Run, process: Process, redlock: TaskLock, client: Client) -> Callable[[], None]:
    """Return what a client does: its uses, and one more when all faults are over."""
    judge, world = run.judge, run.world

    def all_uses() -> None:
        for use in client.uses:
            process.sleep(use.after)
            process.is_interruptible = True
            try:
                _use(judge, process, redlock, use)
            except (RedlockError, Interrupted) as error:
                world.note(f"{process.name} gets {type(error).__name__}")
            finally:
                process.is_interruptible = False
        process.stop_strikes()
        process.sleep(max(0.0, 1000.0 + _CALM_AFTER_S - world.time))
        last = Use(0.0, client.uses[-1].key, 0.6, _BOUND_S, 0.01, "acquire")
        began = world.time
        try:
            _use(judge, process, redlock, last)
        except RedlockError as error:
            raise Violation(
                "progress", f"{process.name} has no lock {world.time - began:.1f} s later: {error}"
            ) from None

    return all_uses


def _use(judge: Judge, process: Process, redlock: TaskLock, use: Use) -> None:
    before, began = 0, process.world.time

    def on_attempt(owner: str) -> None:
        nonlocal before
        before = judge.highest(use.key)

    if use.how == "lock":
        before = judge.highest(use.key)
        with redlock.lock(use.key, use.ttl, wait=use.wait, label=process.name) as lease:
            judge.note_acquired(process, lease, before, began)
            _note(process, "locks", lease)
            try:
                process.sleep(use.hold)
            finally:
                judge.note_releasing(lease)
        return
    if use.how == "reserve":
        lease = redlock.reserve(use.key, RESERVED_S, label=process.name)
        judge.note_reserved(use.key)
        _note(process, "reserves", lease)
        try:
            process.sleep(use.hold)
        finally:
            with suppress(QuorumUnavailable):
                redlock.release(lease)
        return
    lease = redlock.acquire_for_task(
        use.key, use.ttl, wait=use.wait, label=process.name, on_attempt=on_attempt
    )
    judge.note_acquired(process, lease, before, began)
    _note(process, "acquires", lease)
    try:
        if use.how == "extend":
            for _ in range(3):
                process.sleep(use.hold / 3)
                was_lost = lease.lost
                with suppress(QuorumUnavailable):
                    redlock.extend(lease)
                    judge.note_extended(lease, was_lost=was_lost)
            process.sleep(use.hold)
        elif use.how == "leave":
            return
        else:
            process.sleep(use.hold)
    finally:
        judge.note_releasing(lease)
        # Unconfirmed, it is repeated in the background.
        with suppress(QuorumUnavailable):
            if use.how != "leave":
                redlock.release(lease)


def _judged(judge: Judge, redlock: TaskLock) -> Callable[..., None]:
    """Return `redlock.release`, of which the judge hears."""

    def release(lease: Lease, **options: object) -> None:
        judge.note_releasing(lease)
        TaskLock.release(redlock, lease)
        judge.note_released(lease)

    return release


def _note(process: Process, what: str, lease: Lease) -> None:
    if process.world.trace is not None:
        process.world.note(f"{process.name} {what} {lease.key} {short(lease.owner)} {lease.token}")
