"""When a process died, as closely as it can be told from outside."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.support.eventually import PATIENCE

_POLL_S = 0.0005


class DeathWatch:
    """Watches a process from now on, by the state that the kernel reports.

    Args:
        pid: A process that lives.

    Attributes:
        alive_at: When it was last seen alive, in seconds since the epoch.
        dead_at: When it was first seen dead (be it as a zombie); None while it lives.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.alive_at = time.time()
        self.dead_at: float | None = None
        self._is_over = threading.Event()
        self._stat = Path(f"/proc/{pid}/stat")
        threading.Thread(target=self._watch, name="death-watch", daemon=True).start()

    def wait(self) -> None:
        """Return when it is dead."""
        assert self._is_over.wait(PATIENCE), f"process {self.pid} lives on"

    def stop(self) -> None:
        """Watch no more."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.is_set():
            asked_at = time.time()
            if not self._is_alive():
                self.dead_at = time.time()
                self._is_over.set()
                return
            self.alive_at = asked_at
            time.sleep(_POLL_S)

    def _is_alive(self) -> bool:
        try:
            # "<pid> (<name>) <state> …", and a name may contain anything.
            state = self._stat.read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state not in "ZX"
