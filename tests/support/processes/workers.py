"""A real `celery worker`: started, watched, frozen, killed.

    with Worker("tests.integration.apps.locked", folder, pool="threads") as worker:
        worker.wait_for_line("outcome=skip")

Its log is a file, shown at the end of a failed test. It does not outlive the test's process, on
Linux not even if that is killed.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.eventually import PATIENCE, eventually

from .inside import FOLDER_VARIABLE
from .start import Process, kill_group, start

if TYPE_CHECKING:
    from typing_extensions import Self

POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
GREEN_POOLS = ("gevent", "eventlet")

_LOG_TAIL_LINES = 60
_WARM_SHUTDOWN_S = 20.0
_LOOKS_AT_AN_IDLE_WORKER = 20

started: list[Worker] = []
"""Every worker whose log a failed test should show."""


class Worker:
    """One worker, in a process group of its own; started by `start` or `with`.

    Args:
        module: The app's module, as for ``celery -A``.
        folder: What the worker shares with the test (`inside.Inside`); its log goes there, too.
        name: Of its log, and what its node name begins with.
        pool: prefork, threads, solo, gevent or eventlet.
        concurrency: How many tasks it runs at a time.
        args: More arguments of ``celery worker``.
        gossip: Whether it hears events of other workers.
        env: More environment variables.
        prefix: Module that starts it, and its arguments: what `ddtrace-run` runs, for example.

    Attributes:
        celery: Module that is run as the command `celery`.
        is_fresh: Whether it is a new interpreter, even if a fork would do the same.
        log: Path of its log.
    """

    celery = "tests.support.processes.celery_command"
    is_fresh = False

    def __init__(
        self,
        module: str,
        folder: Path,
        *,
        name: str = "worker",
        pool: str = "prefork",
        concurrency: int = 4,
        args: tuple[str, ...] = (),
        gossip: bool = False,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.pool = pool
        self.log = folder / f"{name}.log"
        self._command = [*started_by(prefix), "-m", self.celery, "-A", module, "worker"]
        self._command += ["--pool", pool, "--concurrency", str(concurrency)]
        # In RabbitMQ a node's name is that of a queue, which nobody else may have at the same time.
        self._node = f"{name}-{secrets.token_hex(4)}"
        self._command += ["--hostname", f"{self._node}@%h", "--loglevel", "INFO"]
        self._command += ["--without-mingle", "--without-heartbeat", *args]
        self._command += [] if gossip else ["--without-gossip"]
        self._env = {FOLDER_VARIABLE: str(folder), **(env or {})}
        self._process: Process | None = None

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<Worker {self.name}, {self.pool} ({state})>"

    def __enter__(self) -> Self:
        self.start()
        self.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- life

    @property
    def process(self) -> Process:
        """Its main process, dead or alive.

        Raises:
            RuntimeError: It was never started.
        """
        if self._process is None:
            raise RuntimeError(f"the worker {self.name} was not started")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of its main process, also after the end of it."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether its main process lives, be it paused."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; it is ready some time later."""
        self._process = start(
            self._command, self.log, self._env, appends=True, is_fresh=self.is_fresh
        )
        started.append(self)

    def wait_until_ready(self) -> None:
        """Return when it takes tasks.

        Raises:
            AssertionError: It has exited instead; with the end of its log.
        """
        self.wait_for_line(rf"{self._node}@\S+ ready\.")

    def ask_to_end(self, number: int = signal.SIGTERM) -> None:
        """Send its main process SIGTERM (warm shutdown) or another signal; don't wait for its end.

        Greenlets wait for something at that moment, all of them. Celery's handler of a cold
        shutdown runs in whichever does not, and waits there: what was to wake that one wakes the
        handler, and the worker never ends. docs/reference/versions.md says so to its users.
        """
        if self.pool in GREEN_POOLS and number == signal.SIGQUIT:
            self.wait_until_idle()
        self.process.send_signal(number)

    def wait_until_idle(
        self, looks: int = _LOOKS_AT_AN_IDLE_WORKER, within: float = PATIENCE
    ) -> None:
        """Return when its main thread has slept at so many looks in a row, or after `within` s."""
        slept = 0
        before: object = None
        deadline = time.monotonic() + within
        with suppress(psutil.NoSuchProcess):
            # For psutil, a process's own figures are its main thread's.
            main = psutil.Process(self.pid)
            while slept < looks and time.monotonic() < deadline:
                switches = main.num_ctx_switches()
                is_asleep = main.status() == psutil.STATUS_SLEEPING and switches == before
                slept, before = slept + 1 if is_asleep else 0, switches
                time.sleep(0.005)

    def wait_until_ended(self, within: float = PATIENCE) -> int:
        """Return its exit code once its main process has ended."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end:\n{self.log_tail()}") from None

    def stop(self) -> None:
        """End it by a warm shutdown, failing that by SIGKILL; nothing of it is left."""
        if self.is_running:
            self.resume()  # a stopped process sees no SIGTERM
            self.ask_to_end()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_WARM_SHUTDOWN_S)
        self.kill_all()

    def kill(self) -> None:
        """Kill its main process alone, as the OOM killer would; return when it is dead."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kill its main process and its pool at once, as a machine that is lost."""
        if self._process is not None:
            kill_group(self._process)

    def pause(self) -> None:
        """Stop all its processes from running, as a frozen virtual machine would."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused worker go on where it was."""
        os.killpg(self.pid, signal.SIGCONT)

    def children(self) -> list[int]:
        """Return the process ids of its prefork pool."""
        try:
            return [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    # ---- log

    def log_text(self) -> str:
        """Return what it has logged so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        """Return its last lines."""
        return "\n".join(self.log_text().splitlines()[-_LOG_TAIL_LINES:])

    def lines(self, pattern: str) -> list[str]:
        """Return the lines in which the regular expression `pattern` is found."""
        return [line for line in self.log_text().splitlines() if re.search(pattern, line)]

    def wait_for_line(self, pattern: str, *, count: int = 1) -> str:
        """Return the last of `count` lines in which `pattern` is found, as soon as they are there.

        Raises:
            AssertionError: They never came, or the worker has ended; with the end of its log.
        """

        def is_decided() -> bool:
            has_ended = not self.is_running  # before it is looked for: its last words count
            return len(self.lines(pattern)) >= count or has_ended

        with suppress(AssertionError):  # of the one below, which shows the log
            eventually(is_decided)
        found = self.lines(pattern)
        assert len(found) >= count, f"{self} without {pattern!r}:\n{self.log_tail()}"
        return found[count - 1]


def started_by(prefix: tuple[str, ...]) -> list[str]:
    """Return the command of Python, with the module in front that starts it, if any."""
    return [sys.executable, "-m", *prefix, sys.executable] if prefix else [sys.executable]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs or could run; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_process(pid: int) -> None:
    """Kill a pool's child; return when it is dead."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), f"process {pid} is dead")
