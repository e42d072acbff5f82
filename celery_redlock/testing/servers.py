"""Embedded servers: real redis-server processes that end with this process.

```python
with start_servers(3) as servers:
    redlock = Redlock(servers.urls, restart_guard=False)
    servers[0].pause()
```
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import redis

from .binaries import find_server_binary
from .group import Group, Node
from .launch import free_port, launch

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.005


class Server(Node):
    """One server on 127.0.0.1, empty, without persistence; started and stopped by `with`.

    The server never outlives this process: on Linux not even if that is killed.

    Args:
        args: More command-line arguments, e.g. `"--appendonly", "yes"`; they win over the defaults.
        binary: The server to start. None: `find_server_binary()`.
        env: Environment variables to add to those of this process. None: nothing.

    Attributes:
        port: TCP port, final once the server has started.
    """

    def __init__(
        self, *args: str, binary: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self._args = args
        self._binary = binary
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._has_started = False
        self._owner_pid = os.getpid()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<Server {self.url} ({state})>"

    @property
    def unix_url(self) -> str:
        """The address of the same server on its unix socket; another one after `stop`."""
        return f"unix://{self.folder}/redis.sock"

    @property
    def folder(self) -> Path:
        """The server's working folder: socket, log and persistent files.

        Raises:
            RuntimeError: The server was not started or is stopped.
        """
        if self._folder is None:
            raise RuntimeError(f"the server on port {self.port} was not started or is stopped")
        return self._folder

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's process, dead or alive; another one after a restart.

        Raises:
            RuntimeError: The server was not started or is stopped.
        """
        if self._process is None:
            raise RuntimeError(f"the server on port {self.port} was not started or is stopped")
        return self._process

    @property
    def pid(self) -> int:
        """Process id of the server.

        Raises:
            RuntimeError: The server was not started or is stopped.
        """
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers; a running server is left alone.

        Raises:
            FileNotFoundError: No server binary found.
            RuntimeError: The server exited, did not answer, or its port is taken; with the end of
                its log.
        """
        if self.is_running:
            return
        binary = self._binary or find_server_binary()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="redlock-server-"))
            atexit.register(self._stop_at_exit)
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not self._start_once(binary, deadline):
                # The port is taken. It may change only before the server has answered once.
                if not self._has_started:
                    self.port = free_port()
                time.sleep(_POLL_SECONDS)
        except BaseException:
            self.stop()
            raise
        self._has_started = True

    def stop(self) -> None:
        """End the server with SIGTERM, failing that SIGKILL, and remove its folder."""
        self._end(signal.SIGTERM)
        self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would; `start` brings it back."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start the server on the same port; without persistence its memory is empty."""
        self._end(signal.SIGTERM)
        self.start()

    def pause(self) -> None:
        """Pause the process (SIGSTOP): connections stay open, nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        if sys.platform == "linux":
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume a paused process (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def reset(self) -> None:
        """Return the server to running and empty, whatever was done to it.

        Settings changed at run time may stay.
        """
        self.start()
        self.resume()
        try:
            self._forget_everything(within=2.0)
        except redis.RedisError:  # CLIENT PAUSE, a password, a script without end, …
            self.kill()
            self.start()
            self._forget_everything(within=_START_SECONDS)

    def _forget_everything(self, within: float) -> None:
        with self.client(socket_timeout=within) as client:
            client.flushall()
            client.script_flush()

    def _start_once(self, binary: Path, deadline: float) -> bool:
        """Return whether the server runs; False if its port was taken."""
        self._process = self._launch(binary)
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            if self._answers():
                return True
            time.sleep(_POLL_SECONDS)
        self._end(signal.SIGKILL)
        log = (self.folder / "log").read_text(errors="replace")
        if "Address already in use" in log and time.monotonic() < deadline:
            return False
        raise RuntimeError(f"{binary} did not start on port {self.port}:\n{log[-2000:]}")

    def _launch(self, binary: Path) -> subprocess.Popen[bytes]:
        command = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self.folder), "--unixsocket", str(self.folder / "redis.sock")]
        command += ["--save", "", "--appendonly", "no", *self._args]
        return launch(command, self.folder / "log", self._env)

    def _answers(self) -> bool:
        """Return whether this server answers, on the socket in its own folder."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.folder / "redis.sock"))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
            except OSError:
                return False

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal_number)
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _stop_at_exit(self) -> None:
        if self._owner_pid == os.getpid():  # a forked child does not own its parent's servers
            self.stop()


class Servers(Group[Server]):
    """Several servers, independent of each other; started and stopped by `with`."""

    __slots__ = ()

    def stop(self) -> None:
        """End all servers at the same time, and remove their folders."""
        for server in self:
            if server.is_running:
                server.process.terminate()
        super().stop()


@contextmanager
def start_servers(count: int, *args: str, binary: Path | None = None) -> Iterator[Servers]:
    """Start independent servers, and stop them in the end.

    Args:
        count: Number of servers, >= 1.
        args: More command-line arguments for each.
        binary: The server to start. None: `find_server_binary()`.

    Raises:
        FileNotFoundError: No server binary found.
        RuntimeError: A server did not start.
    """
    with Servers(Server(*args, binary=binary) for _ in range(count)) as servers:
        yield servers
