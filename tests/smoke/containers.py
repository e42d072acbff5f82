"""pytest-celery's containers around processes of this machine.

Its classes ask little of Docker's container object; with a process in that place, whatever they do
and whatever its fixtures build on them stays as it is.
"""

from __future__ import annotations

import secrets
import signal
from typing import Any

from pytest_celery import RedisContainer

from celery_redlock.testing import Server
from tests.support.processes.start import kill_group
from tests.support.processes.workers import Worker


class LocalContainer:
    """Stands in for `docker.models.containers.Container`.

    Args:
        process: What runs in it, started.
        hostname: Where others reach it.
    """

    def __init__(self, process: Server | Worker, hostname: str = "localhost") -> None:
        self._process = process
        self.id = secrets.token_hex(32)
        self.name = f"{type(process).__name__.lower()}-{self.id[:8]}"
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": hostname},
            # No networks or ports that somebody should wait for.
            "NetworkSettings": {"Networks": {}, "Ports": {}},
        }

    @property
    def status(self) -> str:
        return "running" if self._process.is_running else "exited"

    def reload(self) -> None:
        """Do nothing: the status is always that of this moment."""

    def logs(self) -> bytes:
        process = self._process
        return (process.log if isinstance(process, Worker) else process.folder / "log").read_bytes()

    def kill(self, signal_name: str | None = None) -> None:
        """Send a signal to the first process; SIGKILL to all, for none outlives the first."""
        number = signal.Signals[signal_name or "SIGKILL"]
        if number != signal.SIGKILL:
            self._process.process.send_signal(number)
            return
        kill_group(self._process.process)

    def restart(self, timeout: float) -> None:
        """Stop it, with the patience of its own, and start it again."""
        self._process.stop()
        self._process.start()


class LocalRedis(RedisContainer):
    """A server that tests and workers find at the same address."""

    def __init__(self, server: Server) -> None:
        super().__init__(LocalContainer(server, hostname=f"127.0.0.1:{server.port}"))
        self._server = server

    @property
    def host_url(self) -> str:
        return self.url

    @property
    def port(self) -> int:
        return self._server.port
