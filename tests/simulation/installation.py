"""What the lock takes from the machine, replaced for the thread of a simulation.

The keepers of other tests may still run in threads of their own: they go on with the originals.
"""

from __future__ import annotations

import queue
import random
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

from celery_redlock.redlock import backoff, keeper, keeper_thread, lease, waiters, waiting
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.threads import callbacks, dispatch, native
from celery_redlock.redlock.threads.wakeup import Wakeup
from celery_redlock.redlock.transport import (
    connection_set,
    handshake,
    node,
    redis_py,
    subscriptions,
)
from celery_redlock.redlock.transport.poller import new_poller

from .link import Link
from .poller import Poller
from .process import Process
from .wire import Connector
from .world import Crashed, Task


class Simulated:
    """The process whose code runs now, and its ways to the nodes.

    Attributes:
        process: The process.
        links: Its ways to the nodes, by process name and host.
    """

    def __init__(self) -> None:
        self.process: Process | None = None
        self.links: dict[tuple[str, str], Link] = {}

    def now(self) -> Process:
        """Return the process whose code runs now."""
        process = self.process
        if process is None:
            raise AssertionError("no process is simulated")
        current = process.world.current
        return current.process if current else process


class SimulatedWakeup:
    """Stands in for a pipe by which one thread wakes another."""

    def __init__(self, process: Process) -> None:
        self.poller: Poller | None = None
        self.fd = process.new_fd(self)
        self._process = process
        self._is_set = False
        self._task: Task | None = None

    def wake(self) -> None:
        self._is_set = True
        if self._task:
            self._process.world.wake(self._task)
        if self.poller:
            self.poller.has_data(self.fd)

    def wait(self, seconds: float) -> bool:
        process = self._process
        process.step()
        if not self._is_set:
            self._task = process.world.current
            process.world.wait(process.until(max(0.0, seconds)))
            self._task = None
        process.step()
        return self.clear()

    def clear(self) -> bool:
        was_set, self._is_set = self._is_set, False
        if self.poller:
            self.poller.is_empty(self.fd)
        return was_set

    def is_readable(self) -> bool:
        return self._is_set

    def is_writable(self) -> bool:
        return True

    def close(self) -> None:
        self._process.ends.pop(self.fd, None)


class _Queue:
    """Stands in for a SimpleQueue."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._task: Task | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._task:
            self._process.world.wake(self._task)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            process = self._process
            process.step()
            if not self._items:  # else one came as the thread stood still
                self._task = process.world.current
                process.world.wait(process.until(1e9 if timeout is None else timeout))
                self._task = None
                process.step()
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class Chance:
    """Stands in for the modules `random` and `secrets`."""

    def __init__(self, simulated: Simulated) -> None:
        self._simulated = simulated

    def uniform(self, low: float, high: float) -> float:
        return self._simulated.now().chance.uniform(low, high)

    def random(self) -> float:
        return self._simulated.now().chance.random()

    def token_hex(self, count: int) -> str:
        return f"{self._simulated.now().chance.getrandbits(8 * count):0{2 * count}x}"


class _Keepers:
    """Stands in for the set of a process's keepers."""

    def __init__(self, simulated: Simulated, original: WeakSet[Keeper]) -> None:
        self._simulated = simulated
        self._original = original
        self._thread = threading.get_ident()

    def _here(self) -> list[Keeper] | None:
        is_here = threading.get_ident() == self._thread
        return self._simulated.now().keepers if is_here else None

    def add(self, keeper: Keeper) -> None:
        here = self._here()
        (self._original.add if here is None else here.append)(keeper)

    def __iter__(self) -> Iterator[Keeper]:
        here = self._here()
        return iter(self._original if here is None else here)


class HereOnly:
    """A module of which some names are others in this thread."""

    def __init__(self, original: Any, others: dict[str, Any]) -> None:
        self._original = original
        self._others = others
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name in self._others and threading.get_ident() == self._thread:
            return self._others[name]
        found = getattr(self._original, name)
        if name not in self._others:
            setattr(self, name, found)  # found at once from now on
        return found


def here(original: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is `other` in this thread, and `original` elsewhere."""
    thread = threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        chosen = other if threading.get_ident() == thread else original
        return chosen(*args, **kwargs)

    return either


@contextmanager
def installed() -> Iterator[Simulated]:
    """Let this thread's locks be simulated."""
    simulated = Simulated()
    chance = Chance(simulated)

    def start(run: Callable[[], None], name: str) -> None:
        process = simulated.now()
        process.world.start(process, name, run)

    def connector(url: str, name: str, timeout: float) -> Connector:
        process = simulated.now()
        host = urlsplit(url).hostname or ""
        return Connector(process, simulated.links[process.name, host], timeout)

    def poller() -> Poller:
        return Poller(simulated.now())

    chances = {"uniform": chance.uniform, "random": chance.random, "token_hex": chance.token_hex}

    def fail(*args: Any, exc_info: BaseException | None = None) -> None:
        if isinstance(exc_info, Crashed):
            return  # the process is gone, and its next step says so again
        world = simulated.now().world
        world.error = world.error or exc_info or sys.exc_info()[1] or AssertionError(args)

    # What is logged as unexpected fails the run.
    logged = {"error": fail, "exception": fail}
    places: list[tuple[Any, str, Any]] = [
        (keeper, "_keepers", _Keepers(simulated, keeper._keepers)),
        (keeper, "time", HereOnly(time, {"monotonic": lambda: simulated.now().now()})),
        (keeper, "native", HereOnly(native, {"original": lambda *_: simulated.now().sleep})),
        (keeper_thread, "logger", HereOnly(keeper_thread.logger, logged)),
        (callbacks, "logger", HereOnly(callbacks.logger, logged)),
        (connection_set, "logger", HereOnly(connection_set.logger, logged)),
        (backoff, "random", HereOnly(random, chances)),
        (node, "random", HereOnly(random, chances)),
        (waiting, "random", HereOnly(random, chances)),
        (lease, "secrets", HereOnly(secrets, chances)),
        (
            connection_set,
            "queue",
            HereOnly(queue, {"SimpleQueue": lambda: _Queue(simulated.now())}),
        ),
        (connection_set, "new_poller", here(new_poller, poller)),
        (handshake, "new_poller", here(new_poller, poller)),
        (keeper_thread, "native", HereOnly(native, {"original": lambda *_: simulated.now().sleep})),
        (keeper_thread, "Wakeup", here(Wakeup, lambda: SimulatedWakeup(simulated.now()))),
        (subscriptions, "Wakeup", here(Wakeup, lambda: SimulatedWakeup(simulated.now()))),
        (waiters, "SimpleQueue", here(queue.SimpleQueue, lambda: _Queue(simulated.now()))),
        (waiters, "logger", HereOnly(waiters.logger, logged)),
        (redis_py, "Connector", here(redis_py.Connector, connector)),
        (dispatch, "start_thread", here(dispatch.start_thread, start)),
        (dispatch, "start_beside", here(dispatch.start_beside, start)),
    ]
    originals = [(where, name, getattr(where, name)) for where, name, _ in places]
    for where, name, other in places:
        setattr(where, name, other)
    try:
        yield simulated
    finally:
        for where, name, original in originals:
            setattr(where, name, original)
