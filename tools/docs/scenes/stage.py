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
from tests.integration.ladder.foils import PlainRedlock
from tests.simulation.campaign import without_collection
from tests.simulation.faults import Faults
from tests.simulation.installation import Simulated, installed
from tests.simulation.link import Link
from tests.simulation.process import Process
from tests.simulation.schedule import Fault
from tests.simulation.servers import Server
from tests.simulation.world import Crashed

from .recorder import KEY, RecordedWorld

TTL_S = 1.0
_SLOWNESS_S = 0.006
_END_S = 1004.0
_REST_MS = 40.0
_WRITES = 3


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
    """Five nodes and the clients A and B.

    Args:
        simulated: Where the ways of processes to nodes are noted.
        faults: What strikes.
        frozen: Client, when it stops, and for how long, seconds; None: nobody.
        begins: When each client asks for the lock, seconds.
        writes: How often each holder writes.
        plain: Whether the clients use Redlock without token and restart guard.
    """

    def __init__(
        self, simulated: Simulated, faults: Sequence[Fault] = (), *,
        frozen: tuple[str, float, float] | None = None, begins: Sequence[float] = (0.02,),
        writes: int = _WRITES, plain: bool = False,
    ) -> None:  # fmt: skip
        self.world = world = RecordedWorld()
        self.resource = Resource()
        self.writes = writes
        self.servers = [Server(world, f"n{number}", 1.0, 0.0) for number in range(1, 6)]
        world.servers = self.servers
        world.foil_key = FOIL_KEY if plain else ""
        self.processes: dict[str, Process] = {}
        links: list[list[Link]] = []
        chance = random.Random(7)
        for name, after in zip("AB", begins, strict=False):
            process = Process(world, name, 1.0, 0.0, 0.0, [], random.Random(chance.random()))
            ways = [Link(one, random.Random(chance.random()), _SLOWNESS_S) for one in self.servers]
            for server, link in zip(self.servers, ways, strict=True):
                simulated.links[process.name, server.name] = link
            links.append(ways)
            self.processes[name] = process
            simulated.process = process
            run = self._plain(process, ways, after) if plain else self._locked(process, after)
            process.main = world.start(process, "main", run)
        struck = Faults(world, self.servers, links, _SLOWNESS_S, world.struck)
        for fault in faults:
            world.at(1000.0 + fault.at, struck.strike, fault)
        if frozen:
            world.at(1000.0 + frozen[1], self._freeze, frozen)
        world.look_until(_END_S)

    def _freeze(self, frozen: tuple[str, float, float]) -> None:
        name, _, seconds = frozen
        self.processes[name].stalled_until = self.world.time + seconds
        self.world.record("client", name, "is frozen", "")

        def thaw(_: Any) -> None:
            self.world.record("client", name, "runs again", "")

        self.world.at(self.world.time + seconds - 1e-6, thaw)

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
                hold = redlock.lock(KEY, TTL_S, wait=3.0, label=name, on_lost=lost)
                with hold as lease:
                    world.record("client", name, "holds the lock", str(lease.token))
                    for _ in range(self.writes):
                        process.sleep(0.25)
                        self._write(process, lease.token)
                    process.sleep(0.05)
                world.record("client", name, "has released the lock", "")
            except RedlockError as error:
                world.record("client", name, f"gets {type(error).__name__}: {error}", "")

        return run

    def _plain(self, process: Process, ways: list[Link], after: float) -> Callable[[], None]:
        world, name = self.world, process.name
        foil = Plain(process, ways)

        def run() -> None:
            process.sleep(after)
            world.record("client", name, "waits for the lock", "")
            while (held := foil.acquire(TTL_S)) is None:
                process.sleep(0.15)
            world.record("client", name, "holds the lock", "")
            for _ in range(self.writes):
                process.sleep(0.25)
                self._write(process, held.token)
            process.sleep(0.05)
            foil.release(held)
            world.record("client", name, "has released the lock", "")

        return run

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


class Plain(PlainRedlock):
    """The ladder's Redlock, with nodes in virtual time."""

    def __init__(self, process: Process, ways: list[Link]) -> None:
        self._clock = process
        self._nodes = [PlainNode(process, link) for link in ways]  # type: ignore[misc]


class PlainNode:
    """One simulated node, with the two commands that this lock sends."""

    def __init__(self, process: Process, link: Link) -> None:
        self._process, self._link, self._server = process, link, link.server

    def set(self, key: str, value: str, *, nx: bool, px: int) -> bool:
        """Set the key if it is not set; `px`: ms."""

        def do() -> bool:
            if nx and self._server._get(key) is not None:
                return False
            self._server._set(key, f"{value}:{self._process.name}", px)
            return True

        return self._ask("SET NX", do)

    def eval(self, _script: str, _count: int, key: str, value: str) -> bool:
        """Delete the key if it has this value."""

        def do() -> bool:
            is_own = self._server._get(key) == f"{value}:{self._process.name}"
            if is_own:
                self._server._del(key)
            return is_own

        return self._ask("compare and DEL", do)

    def _ask(self, text: str, do: Callable[[], bool]) -> bool:
        process, world, link = self._process, self._process.world, self._link
        assert isinstance(world, RecordedWorld)
        arrives = link.after(0.0, link.out_until, world.time)
        sent = world.message(process.name, self._server.name, text, arrives)
        world.wait(arrives)
        if not self._server.is_up:
            sent[6] = False
            return False
        done = do()
        arrives = link.after(0.0, link.in_until, world.time)
        answer = f"{text}: {'yes' if done else 'no'}"
        world.message(self._server.name, process.name, answer, arrives)
        world.wait(arrives)
        return done


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
