"""One recorded run: real locks, or one of the ladder's, on five simulated nodes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.task_lock import TaskLock
from tests.integration.ladder.foils import KEY as FOIL_KEY
from tests.integration.ladder.foils import Foil
from tests.simulation.campaign import without_collection
from tests.simulation.faults import Faults
from tests.simulation.installation import Simulated, installed
from tests.simulation.link import Link
from tests.simulation.process import Process
from tests.simulation.schedule import Fault
from tests.simulation.servers import Server
from tests.simulation.world import Crashed

from . import wrong_locks
from .recorder import KEY, RecordedWorld

_TTL_S = 1.0
_SLOWNESS_S = 0.006
_END_S = 1004.0
_REST_MS = 40.0
_WRITES = 3
_WAIT_S = 3.0


class Resource:
    """What the lock protects. It compares tokens if it is fenced.

    Attributes:
        highest: Highest token that it has accepted.
    """

    def __init__(self) -> None:
        self.highest = 0

    def accepts(self, token: int | None) -> bool:
        """Return whether it accepts a write with this token; None: the lock has no token."""
        if token is None:
            return True
        is_accepted = token >= self.highest
        self.highest = max(self.highest, token)
        return is_accepted


class Stage:
    """Nodes, and the clients A, B and C.

    Args:
        simulated: Where the ways of processes to nodes are noted.
        faults: What strikes.
        frozen: Client, when it stops, and for how long, seconds; None: nobody.
        killed: When A is killed, seconds; None: it lives.
        ahead: By how much B's wall clock is ahead, seconds.
        begins: When each client asks for the lock, seconds.
        writes: How often each holder writes.
        claims: Whether it also writes before it begins its work, so that lower tokens are refused.
        ttl: Ttl of each lock, seconds.
        nodes: How many nodes there are.
        foil: The ladder's lock that the clients use; None: this package's.
    """

    def __init__(
        self, simulated: Simulated, faults: Sequence[Fault] = (), *,
        frozen: tuple[str, float, float] | None = None, killed: float | None = None,
        ahead: float = 0.0, begins: Sequence[float] = (0.02,), writes: int = _WRITES,
        claims: bool = False, ttl: float = _TTL_S, nodes: int = 5, foil: type[Foil] | None = None,
    ) -> None:  # fmt: skip
        self.world = world = RecordedWorld()
        self.resource = Resource()
        self.writes, self.claims, self.ttl = writes, claims, ttl
        self.servers = [Server(world, f"n{at}", 1.0, 0.0) for at in range(1, nodes + 1)]
        world.servers = self.servers
        world.foil_key = FOIL_KEY if foil else ""
        self.processes: dict[str, Process] = {}
        links: list[list[Link]] = []
        chance = random.Random(7)
        for name, after in zip("ABC", begins, strict=False):
            by_s = ahead if name == "B" else 0.0
            process = Process(world, name, 1.0, by_s, 0.0, [], random.Random(chance.random()))
            ways = [Link(one, random.Random(chance.random()), _SLOWNESS_S) for one in self.servers]
            for server, link in zip(self.servers, ways, strict=True):
                simulated.links[process.name, server.name] = link
            links.append(ways)
            self.processes[name] = process
            simulated.process = process
            run = self._wrong(foil, process, ways, after) if foil else self._locked(process, after)
            process.main = world.start(process, "main", run)
        struck = Faults(world, self.servers, links, _SLOWNESS_S, world.struck)
        for fault in faults:
            world.at(1000.0 + fault.at, struck.strike, fault)
        if frozen:
            world.at(1000.0 + frozen[1], self._freeze, frozen)
        if killed:
            world.at(1000.0 + killed, self._kill)
        world.look_until(_END_S)

    def _freeze(self, frozen: tuple[str, float, float]) -> None:
        name, _, seconds = frozen
        self.processes[name].stalled_until = self.world.time + seconds
        self.world.record("client", name, "is frozen", "")

        def thaw(_: Any) -> None:
            self.world.record("client", name, "runs again", "")

        self.world.at(self.world.time + seconds - 1e-6, thaw)

    def _kill(self, _: Any) -> None:
        self.processes["A"].die()
        self.world.record("client", "A", "is killed", "")

    def _locked(self, process: Process, after: float) -> Callable[[], None]:
        world, name = self.world, process.name
        redlock = TaskLock(
            [f"redis://{server.name}" for server in self.servers], max_ttl=2.0,
            max_clock_skew=0.5, clock=process,
        )  # fmt: skip

        def lost(_: object) -> None:
            world.record("client", name, "has lost its lease", "")

        def run() -> None:
            process.sleep(after)
            world.record("client", name, "waits for the lock", "")
            try:
                hold = redlock.lock(KEY, self.ttl, wait=_WAIT_S, label=name, on_lost=lost)
                with hold as lease:
                    world.record("client", name, "holds the lock", str(lease.token))
                    self._work(process, lease.token)
                world.record("client", name, "has released the lock", "")
            except RedlockError as error:
                world.record("client", name, f"gets {type(error).__name__}: {error}", "")

        return run

    def _wrong(
        self, foil: type[Foil], process: Process, ways: list[Link], after: float
    ) -> Callable[[], None]:
        world, name = self.world, process.name
        client = wrong_locks.simulated(foil, process, ways)

        def run() -> None:
            process.sleep(after)
            world.record("client", name, "waits for the lock", "")
            while (held := client.acquire(self.ttl)) is None:
                if world.time - 1000.0 - after > _WAIT_S:
                    world.record("client", name, "gives up", "")
                    return
                process.sleep(0.15)
            world.record("client", name, "holds the lock", "")
            self._work(process, held.token)
            client.release(held)
            world.record("client", name, "has released the lock", "")

        return run

    def _work(self, process: Process, token: int | None) -> None:
        if self.claims:
            self._write(process, token)
        for _ in range(self.writes):
            process.sleep(0.25)
            self._write(process, token)
        process.sleep(0.05)

    def _write(self, process: Process, token: int | None) -> None:
        world = self.world
        sent = f"write, token {token}" if token else "write, no token"
        world.message(process.name, "resource", sent, world.time + 0.005)
        process.sleep(0.005)
        accepted = self.resource.accepts(token)
        world.record(
            "resource", process.name, str(token or ""), accepted, str(self.resource.highest or "")
        )

    def play(self) -> list[list[Any]]:
        """Run to the end and return the events in order of time."""
        self.world.run()
        for process in self.processes.values():
            process.die()
        for task in list(self.world.tasks):
            self.world.current = task
            with suppress(BaseException):
                task.greenlet.throw(Crashed)
        events = sorted(self.world.events, key=_time_of)
        # What a lock still does in the background for a lost lease is not part of the scene.
        last = max(_time_of(one) for one in events if one[0] in ("client", "resource"))
        return [event for event in events if event[1] <= last + _REST_MS]


def _time_of(event: list[Any]) -> float:
    return float(event[1])


def recorded(**options: Any) -> list[list[Any]]:
    """Return the events of one run: the same ones, whatever else the process does."""
    # Who keeps log records, as pytest does, keeps the leases that they name; and a lock hears of it
    # when a lease is dropped.
    with installed() as simulated, without_collection(), _without_log():
        return Stage(simulated, **options).play()


@contextmanager
def _without_log() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
