"""Workers that are started again when they end, as a service manager does."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from .project import Project
from .workers import Worker

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOK_S = 0.05


class Supervisor(threading.Thread):
    """Keeps as many workers running as there are, as a service manager does; stopped by `with`.

    Args:
        project: Its workers run.
        options: Of the workers that it starts.

    Attributes:
        deaths: When which process of the workers died: it was seen last, or has been killed; who
            kills one takes it down here first.
        ended: How many workers have ended, be it that they were killed or by themselves.
        crashes: How many of them by themselves.
    """

    def __init__(self, project: Project, **options: Any) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.deaths: dict[int, float] = {}
        self.ended = self.crashes = 0
        self._project, self._options = project, options
        self._running = [worker for worker in project.workers if worker.is_running]
        self._seen: dict[int, float] = {}
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def running(self) -> list[Worker]:
        """Return the workers that run now."""
        return [worker for worker in self._running if worker.is_running]

    def run(self) -> None:
        """Look after them."""
        while not self._is_over.wait(_LOOK_S):
            for worker in [worker for worker in self._running if not worker.is_running]:
                self._running.remove(worker)
                self.ended += 1
                self.crashes += worker.pid not in self.deaths
                worker.kill_all()  # what it may have left
                options = {"pool": worker.pool} | self._options
                self._running.append(self._project.new_worker(**options))
                self._running[-1].start()
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        alive = {pid for worker in self._running for pid in [worker.pid, *worker.children()]}
        for pid in self._seen.keys() - alive - self.deaths.keys():
            self.deaths[pid] = self._seen[pid]
        self._seen |= dict.fromkeys(alive, now)
