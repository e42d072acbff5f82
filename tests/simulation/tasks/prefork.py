"""A prefork pool: its main process with the real keeper, and the kernel between it and children."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_redlock.execution import running
from celery_redlock.pools import keeper_client, pool_process, prefork_keeper
from celery_redlock.pools.keeper_client import KeeperClient
from celery_redlock.pools.prefork_keeper import PreforkKeeper
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads.wakeup import Wakeup
from tests.simulation.installation import HereOnly, Simulated, SimulatedWakeup, here
from tests.simulation.poller import Poller
from tests.simulation.process import Process

_FIRST_PID = 100
_WRITING = -1
"""Writing end of the one pipe."""


class Pool:
    """One worker's pool: its main process, whose keeper keeps the leases of its children.

    Args:
        kernel: What is between them.
        process: The main process.
        redlock: Its lock.

    Attributes:
        clients: Keeper client of each child.
    """

    def __init__(self, kernel: Kernel, process: Process, redlock: TaskLock) -> None:
        self.process = process
        self.clients: dict[Process, KeeperClient] = {}
        self.pids: dict[Process, int] = {}
        self._redlock = redlock
        kernel.pool = self
        self.pipe = _Signalled()
        self.keeper = PreforkKeeper(lambda: redlock, lambda _: False)

    def add(self, process: Process, redlock: TaskLock) -> KeeperClient:
        """Add a child, and return its keeper client."""
        index = len(self.pids)
        self.pids[process] = _FIRST_PID + index

        def on_expired() -> None:
            process.signal(running.interrupt_current)

        self.clients[process] = client = KeeperClient(
            _WRITING, self.keeper._table, index, redlock, on_expired
        )
        return client

    def work(self, is_over: Callable[[], bool]) -> None:
        """Keep the children's leases until everything is over."""
        keeper, process = self.keeper, self.process

        def stop() -> None:
            while not is_over():
                process.sleep(1.0)
            keeper._is_stopping = True
            keeper._wakeup.wake()

        process.world.start(process, "stop", stop)
        # Not `_run`, which would log what is unexpected, and go on.
        while not keeper._is_stopping:
            keeper._step(self._redlock)


class _Signalled:
    """The reading end of the pipe, or a pidfd, in the main process."""

    def __init__(self) -> None:
        self.poller: Poller | None = None
        self.fd = 0
        self.data = b""
        self.child: Process | None = None

    def is_readable(self) -> bool:
        return bool(self.data)

    def is_writable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: it ends with its process."""

    def has(self, data: bytes) -> None:
        """Be readable from now on."""
        self.data += data
        if self.poller:
            self.poller.has_data(self.fd)


class _Death:
    """A descriptor of a child, which the kernel closes as it dies."""

    poller: Poller | None = None

    def __init__(self, pidfd: _Signalled) -> None:
        self._pidfd = pidfd

    def is_readable(self) -> bool:
        return False

    def is_writable(self) -> bool:
        return True

    def close(self) -> None:
        self._pidfd.has(b"dead")


class _Poll:
    """Stands in for `select.poll()`."""

    def __init__(self, process: Process) -> None:
        self._poller = Poller(process)

    def register(self, fd: int, _events: int) -> None:
        self._poller.register(fd, writing=False)

    def poll(self, ms: float | None) -> list[tuple[int, int]]:
        seconds = 1e9 if ms is None else ms / 1000
        return [(fd, select.POLLIN) for fd in self._poller.wait(seconds)]


class Kernel:
    """What a pool's processes ask of the system.

    Attributes:
        pool: The pool of the present run; None: workers are solo.
    """

    pool: Any = None

    def __init__(self, simulated: Simulated) -> None:
        self._simulated = simulated
        self._thread = threading.get_ident()

    # ---- the calling process's keeper client

    def client(self) -> KeeperClient | None:
        """Return the keeper client of the process whose code runs."""
        if self.pool is None or threading.get_ident() != self._thread:
            return None
        found: KeeperClient | None = self.pool.clients.get(self._simulated.now())
        return found

    # ---- stands in for `os`, `signal` and `select`

    def pipe(self) -> tuple[int, int]:
        pipe = self.pool.pipe
        pipe.fd = self.pool.process.new_fd(pipe)
        return pipe.fd, _WRITING

    def set_blocking(self, fd: int, is_blocking: bool) -> None: ...

    def read(self, fd: int, _size: int) -> bytes:
        pipe = self.pool.pipe
        data: bytes
        data, pipe.data = pipe.data, b""
        if not data:
            raise BlockingIOError
        if pipe.poller:
            pipe.poller.is_empty(fd)
        return data

    def write(self, _fd: int, data: bytes) -> int:
        self._simulated.now().step()
        if self.pool.process.is_dead:
            raise BrokenPipeError
        self.pool.pipe.has(data)
        return len(data)

    def close(self, fd: int) -> None:
        self.pool.process.ends.pop(fd, None)

    def getpid(self) -> int:
        found: int = self.pool.pids[self._simulated.now()]
        return found

    def pidfd_open(self, pid: int) -> int:
        child = next(one for one, its in self.pool.pids.items() if its == pid)
        if child.is_dead:
            raise ProcessLookupError
        pidfd = _Signalled()
        pidfd.child, pidfd.fd = child, self.pool.process.new_fd(pidfd)
        child.new_fd(_Death(pidfd))
        return pidfd.fd

    def pidfd_send_signal(self, fd: int, _signal: int) -> None:
        self.pool.process.ends[fd].child.signal(running.interrupt_current)

    def poll(self) -> _Poll:
        return _Poll(self._simulated.now())

    def new_wakeup(self) -> SimulatedWakeup:
        return SimulatedWakeup(self._simulated.now())


class _Client:
    """Stands in for the keeper client that each process has in a variable of its own."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def __bool__(self) -> bool:
        return self._kernel.client() is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel.client(), name)

    def is_shutting_down(self) -> bool:
        return False


@contextmanager
def installed_kernel(simulated: Simulated) -> Iterator[Kernel]:
    """Yield what pools in this thread ask of the system."""
    kernel = Kernel(simulated)

    def of(module: Any, *names: str) -> HereOnly:
        return HereOnly(module, {name: getattr(kernel, name) for name in names})

    with pytest.MonkeyPatch.context() as patch:
        names = ("pipe", "set_blocking", "read", "close", "pidfd_open")
        patch.setattr(prefork_keeper, "os", of(os, *names))
        patch.setattr(prefork_keeper, "select", of(select, "poll"))
        patch.setattr(prefork_keeper, "signal", of(signal, "pidfd_send_signal"))
        patch.setattr(keeper_client, "os", of(os, "write", "getpid"))
        patch.setattr(prefork_keeper, "Wakeup", here(Wakeup, kernel.new_wakeup))
        patch.setattr(pool_process, "_client", _Client(kernel))
        yield kernel
