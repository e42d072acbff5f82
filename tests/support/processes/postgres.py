"""A PostgreSQL server that a test has to itself, to be stopped and started again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redlock.testing import free_port
from tests.support.eventually import eventually
from tests.support.requirements import unmet

if TYPE_CHECKING:
    from typing_extensions import Self

_DEBIANS = Path("/usr/lib/postgresql")
_USER, _SERVERS_USER = "redlock", "nobody"
_START_S = 60.0


class Postgres:
    """A server in a folder of its own; started and stopped by `with`.

    Ends the test if this machine has none.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="redlock-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if not _command("initdb"):
            unmet("no PostgreSQL on this machine")
        if user := _unprivileged():
            shutil.chown(self._folder, user)
        made = self._run("initdb", "--username", _USER, "--auth", "trust", "--no-sync").wait()
        assert made == 0, self._said()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end(signal.SIGQUIT)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def url_at(self, port: int) -> str:
        """Return its address for Celery, behind a proxy that listens there."""
        return f"db+postgresql+psycopg://{_USER}@127.0.0.1:{port}/postgres"

    def restart(self) -> None:
        """End it without waiting for its clients, and start it again; what it holds stays."""
        self._end(signal.SIGINT)
        self._start()

    def _start(self) -> None:
        at = ["-p", str(self.port), "-h", "127.0.0.1", "-k", str(self._folder)]
        self._process = process = self._run("postgres", *at)
        state = self._folder / "data" / "postmaster.pid"

        def is_decided() -> bool:
            # Its last line says so.
            is_ready = state.exists() and "ready" in state.read_text()
            return is_ready or process.poll() is not None

        eventually(is_decided, "PostgreSQL has started", within=_START_S)
        assert process.poll() is None, self._said()

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [_command(name), "-D", str(self._folder / "data"), *arguments], cwd="/",
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                user=_unprivileged(), start_new_session=True,
            )  # fmt: skip

    def _said(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_START_S)
            self._process = None


def _unprivileged() -> str | None:
    """Return as whom the server runs in place of root, which it refuses to; None: as this one."""
    return _SERVERS_USER if os.geteuid() == 0 else None


def _command(name: str) -> str:
    newest_first = sorted(_DEBIANS.glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next(map(str, newest_first), "")
