"""Start of the commands of Celery: as forks of a process that has imported it, where that is alike.

A new interpreter spends most of a command's processor time on imports. It is started where a fork
of `fork_server` would not be what it is: see `is_alike`. Forks of one server have the same hash
secret, other than new interpreters.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import psutil

from celery_redlock.testing.launch import launch
from tests.support.root import ROOT

_PROGRAM = Path(__file__).with_name("fork_server.py")
_ANSWERS_WITHIN_S = 60.0
_SHORTEST_LOOK_S = 0.001
_LONGEST_LOOK_S = 0.02
_GREEN = ("gevent", "eventlet")
# What is read only when a process is under way. Of any other variable, a module that the server
# has imported, the interpreter or the linker may have made something already.
_READ_LATE = (
    "BEAT_METRICS_PORT",
    "CELERY_BROKER_URL",
    "CELERY_BROKER_WRITE_URL",
    "DJANGO_SETTINGS_MODULE",
    "METRICS_PORT",
    "PYTEST_CURRENT_TEST",
    "REDLOCK_",
    "TMPDIR",
)


class Process(Protocol):
    """What is there of a process that was started here: part of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start(
    command: list[str],
    log: Path,
    env: Mapping[str, str],
    *,
    appends: bool = False,
    is_fresh: bool = False,
) -> Process:
    """Start a process in a session of its own, which never outlives this one.

    Args:
        command: Interpreter, ``-m``, module and arguments.
        log: File that gets its output.
        env: Environment variables to add to those of this process.
        appends: Whether what the file has already is kept.
        is_fresh: Whether it has to be a new interpreter.
    """
    environment = os.environ | env
    if is_fresh or not is_alike(command, environment):
        return launch(command, log, env, cwd=ROOT, appends=appends)
    with log.open("ab" if appends else "wb") as output:
        return _server(os.getpid()).fork(command, environment, output, output)


def run(
    command: list[str], env: Mapping[str, str], *, timeout: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends; return its status, and what it has written.

    Args:
        command: Interpreter, ``-m``, module and arguments.
        env: Environment variables to add to those of this process.
        timeout: Seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: It was.
    """
    environment = os.environ | env
    if not is_alike(command, environment):
        return subprocess.run(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, check=False,
        )  # fmt: skip
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = _server(os.getpid()).fork(command, environment, output, errors)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        for written in (output, errors):
            written.seek(0)
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def kill_group(process: Process) -> None:
    """Kill the group that `process` leads, be it alive or not; return when it is reaped.

    Once it is reaped and nobody is left of its group, the number may be another's: with 32,768 of
    them and many processes at a time, a server could be killed in place of a worker that had ended.
    """
    if process.poll() is None or not psutil.pid_exists(process.pid):
        with suppress(ProcessLookupError):  # nobody is left
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_alike(command: list[str], environment: Mapping[str, str]) -> bool:
    """Return whether a fork of the server does what a new interpreter does.

    It does not with options of the interpreter, with an environment that is read early, and with a
    pool of greenlets, which is patched in before anything else is imported.
    """
    if sys.platform != "linux" or command[:2] != [sys.executable, "-m"]:
        return False
    if any(pool in word for pool in _GREEN for word in command):
        return False
    first = _server(os.getpid()).environment
    names = first.keys() | environment.keys()
    return all(
        first.get(name) == environment.get(name) or name.startswith(_READ_LATE) for name in names
    )


class Forked:
    """A process that a server has forked; its methods are those of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, command: list[str], pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._command = command
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return its exit status, negative if a signal has killed it; None while it runs."""
        with self._lock:  # its status is there once, for whichever thread asks first
            return self._status()

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: It has not, in so many seconds.
        """
        ends_at = None if timeout is None else time.monotonic() + timeout
        pause = _SHORTEST_LOOK_S
        while (status := self.poll()) is None:
            if timeout is not None and ends_at is not None and time.monotonic() > ends_at:
                raise subprocess.TimeoutExpired(self._command, timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK_S)
        return status

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless its end has been seen."""
        with self._lock:  # else another thread could see its end in between
            if self._status() is None:
                os.kill(self.pid, sig)  # it is not reaped yet, so it is nobody else's process id

    def _status(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.status_of(self.pid)
        return self.returncode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks; it ends with this one.

    Attributes:
        environment: What it was started with.
    """

    def __init__(self) -> None:
        self.environment = dict(os.environ)
        self._lock = threading.Lock()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_ANSWERS_WITHIN_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM)], cwd=ROOT, env=self.environment,
                stdin=theirs.fileno(), stdout=self._said, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    def fork(
        self, command: list[str], env: Mapping[str, str], output: IO[Any], errors: IO[Any]
    ) -> Forked:
        """Start a command with this environment, its output and its errors to these files.

        Raises:
            RuntimeError: The server has ended, or the fork could not begin; with why.
        """
        files = [output.fileno(), errors.fileno()]
        answer = self._ask({"command": command, "env": dict(env)}, files)
        return Forked(self, command, answer["pid"])

    def status_of(self, pid: int) -> int | None:
        """Return the exit status of a process that has ended, once; None while it runs."""
        status = self._ask({"wait": pid})["status"]
        return status if status is None else os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End it, and whatever it has forked."""
        self._channel.close()
        self._process.wait()
        self._said.close()

    def _ask(self, request: dict[str, Any], descriptors: Iterable[int] = ()) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._channel, [json.dumps(request).encode()], list(descriptors))
                said = self._channel.recv(1 << 16)
            except TimeoutError as error:
                self._process.kill()
                raise RuntimeError(self._end()) from error
            except OSError as error:
                raise RuntimeError(self._end()) from error
            if not said:
                raise RuntimeError(self._end())
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise RuntimeError(f"the fork server failed:\n{answer['error']}")
        return answer

    def _end(self) -> str:
        """Return how it has ended."""
        self._channel.close()  # for all: an answer that comes late is not that of the next request
        status = self._process.wait()
        words = os.pread(self._said.fileno(), 1 << 16, 0).decode(errors="replace")
        return f"the fork server has ended with status {status}, and wrote:\n{words}"


@functools.cache
def _server(_owner_pid: int) -> ForkServer:
    """Return this process's server, started when it is needed first."""
    return ForkServer()
