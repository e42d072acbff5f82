"""Processes of the demo, started before it and ended after it in every case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from celery_redlock.testing import Server, Servers, start_servers

from .ledger import Ledger
from .tax_office import TaxOffice

T = TypeVar("T")

_ROOT = Path(__file__).parent.parent
_POLL_S = 0.02
_PATIENCE_S = 60.0
_WARM_SHUTDOWN_S = 10.0
_LOG_TAIL_LINES = 25

# Asks the kernel to kill the worker with the demo, and becomes the worker. Not a preexec_fn: those
# are unsafe as soon as there are threads.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class StageError(Exception):
    """The demo can't continue: an expected event did not happen."""


class Worker:
    """A Celery worker with two pool processes: a real one, in a process group of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        """Start it as `name`; its log goes into `folder`."""
        self.name = name
        self.log = folder / f"worker-{name}.log"
        command = [sys.executable, "-m", "celery", "-A", "example_project.app", "worker"]
        command += ["-c", "2", "-n", f"{name}@%h", "--loglevel", "INFO"]
        command += ["--without-mingle", "--without-gossip"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
                [sys.executable, "-IS", "-c", _LAUNCHER, str(os.getpid()), *command],
                cwd=_ROOT,
                env=os.environ | {"TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends the worker
            )

    def __repr__(self) -> str:
        return f"<Worker {self.name} (pid {self._process.pid})>"

    @property
    def is_running(self) -> bool:
        """Whether its main process lives, be it paused."""
        return self._process.poll() is None

    def pause(self) -> None:
        """Freeze the main process and its pool, as a frozen virtual machine would."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused worker continue."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def ask_to_end(self) -> None:
        """Ask for a warm shutdown: the worker finishes its tasks and exits. Don't wait for it."""
        if self.is_running:
            self.resume()  # a stopped process sees no SIGTERM
            self._process.terminate()

    def end(self, patience_s: float) -> None:
        """Wait for up to `patience_s` until it has exited, then kill the rest of its group."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        with suppress(OSError):  # nobody is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


class Stage:
    """The servers, the ledger and the tax office of one demo, and the workers it starts."""

    def __init__(self, folder: Path, nodes: Servers, broker: Server, office: TaxOffice) -> None:
        self.folder = folder
        self.nodes = nodes
        self.broker = broker
        self.office = office
        self.ledger = Ledger(folder / "ledger.db")
        self.workers: list[Worker] = []
        os.environ |= {
            "BILLING_BROKER": f"{broker.url}/0",
            "BILLING_RESULTS": f"{broker.url}/1",
            "BILLING_LOCK_NODES": ",".join(nodes.urls),
            "BILLING_RESTART_GUARD": "off",
            "BILLING_NODE_TIMEOUT": "1",
            "BILLING_LEDGER": str(folder / "ledger.db"),
            "BILLING_TAX_OFFICE": office.address,
        }

    def start_worker(self, name: str) -> Worker:
        """Start another worker; it is ready some time after this returned."""
        worker = Worker(name, self.folder)
        self.workers.append(worker)
        return worker

    def end_workers(self, patience_s: float) -> None:
        """End every worker, at the same time."""
        for worker in self.workers:
            worker.ask_to_end()
        for worker in self.workers:
            worker.end(patience_s)

    def votes_for(self, invoice: str) -> int:
        """Return how many of the running nodes hold the lock on `invoice`."""
        votes = 0
        for node in self.nodes:
            if node.is_running:
                with node.client() as client:
                    votes += any(client.scan_iter(f"redlock:*{invoice}}}"))
        return votes

    def wait_until(self, what: str, happened: Callable[[], T | None]) -> T:
        """Poll until `happened` returns a true value, and return it.

        Raises:
            StageError: `what` did not happen within a minute, or a worker is gone.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if answer := happened():
                return answer
            for worker in self.workers:
                if not worker.is_running:
                    raise StageError(f"{worker} has exited; waited until {what}")
            time.sleep(_POLL_S)
        raise StageError(f"timed out after {_PATIENCE_S:.0f} s; waited until {what}")


@contextmanager
def set_stage(lock_nodes: int) -> Iterator[Stage]:
    """Start servers and the tax office; end them, and every worker, and remove every file.

    Args:
        lock_nodes: How many lock nodes; the broker is one server more.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="billing-demo-")))
        *nodes, broker = stack.enter_context(start_servers(lock_nodes + 1))
        office = stack.enter_context(TaxOffice(work_seconds=0.5).serving())
        stage = Stage(folder, Servers(nodes), broker, office)
        patience_s = 0.0
        try:
            yield stage
            patience_s = _WARM_SHUTDOWN_S
        finally:
            # A second, impatient Ctrl-C must not interrupt the clean-up.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            stage.end_workers(patience_s)
