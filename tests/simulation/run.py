"""One run of a schedule: the real lock, from the first attempt until nothing is left."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from celery_redlock.redlock import keeper
from celery_redlock.redlock.errors import ConfigurationError, QuorumUnavailable, RedlockError
from celery_redlock.redlock.lease import Lease, is_reservation
from celery_redlock.redlock.task_lock import TaskLock

from .faults import Faults
from .installation import Simulated
from .judge import Judge, Violation
from .link import Link
from .process import Process
from .promises import Promises, judge_all
from .schedule import (
    HORIZON_S,
    MAX_SKEW_S,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
    RATE,
    RESERVED_S,
    SEVERAL,
    Client,
    Fault,
    Schedule,
    Use,
)
from .servers import Server, short
from .world import Crashed, Exiting, Interrupted, Stuck, World

_BOUND_S = 60.0
"""In this time after the last fault each waiter has the lock: guard, back-off and all turns."""
_CALM_AFTER_S = HORIZON_S + 2.0
_ASKED_AGAIN_S = 6.0


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
        self.links: list[list[Link]] = []
        self.processes: list[Process] = []
        self.locks: list[tuple[Process, TaskLock]] = []
        self.promises: list[Promises] = []
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
                Link(
                    server,
                    random.Random(chance.getrandbits(64)),
                    schedule.slowness,
                    schedule.cutting,
                    schedule.room,
                )
                for server in self.servers
            ]
            for server, link in zip(self.servers, links, strict=True):
                simulated.links[process.name, server.name] = link
            self.links.append(links)
            self.processes.append(process)
            self.promises.append(
                Promises(schedule, number, process, self.servers, links, self.judge.fail)
            )
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
        promises = self.promises[self.processes.index(process)]
        redlock.release = _judged(self.judge, promises, redlock)  # type: ignore[method-assign]
        body = _body(self, process, redlock, client)
        process.main = self.world.start(process, "main", body)
        for number in range(1, client.threads):
            self.world.start(process, f"t{number}", body)

    def new_lock(self, process: Process) -> TaskLock:
        """Return the lock of a process."""
        redlock = TaskLock(
            [f"redis://{server.name}" for server in self.servers], node_timeout=NODE_TIMEOUT_S,
            max_ttl=MAX_TTL_S, max_clock_skew=MAX_SKEW_S, restart_guard=self._guard,
            idle_timeout=self.schedule.idle_timeout, clock=process,
        )  # fmt: skip
        promises = self.promises[self.processes.index(process)]
        redlock.log = promises.note_event
        promises.judge_keeper(redlock.keeper)
        self.locks.append((process, redlock))
        return redlock

    def exit(self, process: Process) -> None:
        """End a process as Python does, after what is registered for that.

        Raises:
            Crashed: It does not exist any more.
        """
        process.is_interruptible = False
        began = self.world.time
        keeper._release_at_exit()
        self.promises[self.processes.index(process)].judge_exit(began)
        process.die()
        raise Crashed

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
        judge_all(self.promises)
        if self.world.error:
            raise self.world.error
        is_undisturbed = not self.struck and not any(one.struck for one in self.processes)
        has_crashed = any(one.is_dead for one in self.processes)
        if has_crashed:
            self.world.time += RESERVED_S * (1 + 2 * RATE)
        # The rest of a reservation may stay on a node that its release did not reach.
        allowed = 0 if is_undisturbed or has_crashed else len(self.servers) - self.judge.quorum
        owners = [one for server in self.servers for one in server.owners()]
        if not has_crashed and all(map(is_reservation, owners)):
            # So it may if the connection that made it was given up, though no fault was struck.
            allowed = len(self.servers) - self.judge.quorum
        locked = Counter(key for server in self.servers for key in server.locked())
        for key, count in locked.items():
            if count > allowed:
                raise Violation("rest", f"{key[:20]!r} stays on {count} nodes")

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
    promises = run.promises[run.processes.index(process)]
    user = _User(judge, promises, process, redlock)

    def all_uses() -> None:
        for use in client.uses:
            process.sleep(use.after)
            process.is_interruptible = True
            try:
                user.use(use)
            except Exiting:
                run.exit(process)
            except (RedlockError, Interrupted) as error:
                world.note(f"{process.name} gets {type(error).__name__}")
            finally:
                process.is_interruptible = False
        process.stop_strikes()
        process.sleep(max(0.0, 1000.0 + _CALM_AFTER_S - world.time))
        last = Use(0.0, client.uses[-1].key, 0.6, _BOUND_S, 0.01, "acquire")
        began = world.time
        try:
            try:
                user.use(last)
            except ConfigurationError:
                # A node that was a replica is asked again after that.
                process.sleep(_ASKED_AGAIN_S)
                user.use(last)
        except RedlockError as error:
            raise Violation(
                "progress", f"{process.name} has no lock {world.time - began:.1f} s later: {error}"
            ) from None

    return all_uses


class _User:
    """One thread that uses locks; the judge hears of all that it is told.

    Args:
        judge: The judge.
        promises: What its process was promised.
        process: Its process.
        redlock: The lock of its process.
    """

    def __init__(
        self, judge: Judge, promises: Promises, process: Process, redlock: TaskLock
    ) -> None:
        self._judge = judge
        self._promises = promises
        self._process = process
        self._redlock = redlock

    def use(self, use: Use) -> None:
        """Use locks once.

        Raises:
            RedlockError: The lock says so.
        """
        match use.how:
            case "lock":
                with ExitStack() as stack:
                    self._lock(stack, use, use.key)
                    self._process.sleep(use.hold)
            case "several":
                with ExitStack() as stack:
                    for number in range(SEVERAL):
                        self._lock(stack, use, f"{number}{use.key}")
                    self._process.sleep(use.hold)
            case "reserve":
                self._reserve(use)
            case _:
                self._acquire(use)

    def _lock(self, stack: ExitStack, use: Use, key: str) -> None:
        judge, process = self._judge, self._process
        before, began = judge.highest(key), process.world.time
        hold = self._redlock.lock(
            key, use.ttl, wait=use.wait, label=process.name, lock_delay=use.lock_delay
        )
        try:
            lease = stack.enter_context(hold)
        except RedlockError as error:
            self._promises.note_refused(began, use.wait, error)
            raise
        stack.callback(judge.note_releasing, lease)
        judge.note_acquired(process, lease, before, began)
        self._promises.note_acquired(lease)
        self._note("locks", lease)

    def _reserve(self, use: Use) -> None:
        lease = self._redlock.reserve(use.key, RESERVED_S, label=self._process.name)
        self._judge.note_reserved(use.key)
        self._note("reserves", lease)
        try:
            self._process.sleep(use.hold)
        finally:
            with suppress(QuorumUnavailable):
                self._redlock.release(lease)

    def _acquire(self, use: Use) -> None:
        judge, process, redlock = self._judge, self._process, self._redlock
        before, began = 0, process.world.time

        def on_attempt(owner: str) -> None:
            nonlocal before
            before = judge.highest(use.key)

        try:
            lease = redlock.acquire_for_task(
                use.key, use.ttl, wait=use.wait, label=process.name, on_attempt=on_attempt,
                lock_delay=use.lock_delay,
            )  # fmt: skip
        except RedlockError as error:
            self._promises.note_refused(began, use.wait, error)
            raise
        judge.note_acquired(process, lease, before, began)
        self._promises.note_acquired(lease)
        self._note("acquires", lease)
        try:
            self._hold(use, lease)
        finally:
            if use.how == "interrupted":
                judge.note_releasing(lease)
                with _begun(self._promises, redlock, lease):
                    redlock.keeper.take_over(lease)
            elif use.how == "leave":
                self._promises.note_left(lease)
            else:
                # Unconfirmed, it is repeated in the background.
                with suppress(QuorumUnavailable):
                    redlock.release(lease)

    def _hold(self, use: Use, lease: Lease) -> None:
        process = self._process
        if use.how == "extend":
            for _ in range(3):
                process.sleep(use.hold / 3)
                with suppress(QuorumUnavailable):
                    self._extend(lease)
            process.sleep(use.hold)
        elif use.how == "ensure":
            until = process.world.time + use.hold
            while process.world.time < until:
                process.sleep(process.chance.uniform(0.04, 0.11))
                with suppress(QuorumUnavailable):
                    self._extend(lease)
        elif use.how != "leave":
            process.sleep(use.hold)

    def _extend(self, lease: Lease) -> None:
        was_lost, began = lease.lost, self._process.world.time
        try:
            self._redlock.extend(lease)
        except RedlockError as error:
            self._promises.note_not_extended(began, lease, error)
            raise
        self._judge.note_extended(lease, was_lost=was_lost)

    def _note(self, what: str, lease: Lease) -> None:
        world = self._process.world
        if world.trace is not None:
            world.note(
                f"{self._process.name} {what} {lease.key[:9]} {short(lease.owner)} {lease.token}"
            )


@contextmanager
def _begun(promises: Promises, redlock: TaskLock, lease: Lease) -> Iterator[None]:
    """Note, if the process is to end, a lease whose release had not begun by then."""
    try:
        yield
    except Exiting:
        if not redlock.keeper.is_releasing(lease.owner):
            promises.note_left(lease)
        raise


def _judged(judge: Judge, promises: Promises, redlock: TaskLock) -> Callable[..., None]:
    """Return `redlock.release`, of which the judges hear."""

    def release(lease: Lease, **options: object) -> None:
        judge.note_releasing(lease)
        began = judge.world.time
        try:
            with _begun(promises, redlock, lease):
                TaskLock.release(redlock, lease)
        except QuorumUnavailable as error:
            promises.note_not_released(began, lease, error)
            raise
        judge.note_released(lease)

    return release
