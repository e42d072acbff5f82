"""Kills pool processes while a storm goes on."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from tests.support.processes.workers import Worker, kill_process

if TYPE_CHECKING:
    from typing_extensions import Self


class Killer(threading.Thread):
    """Kills, every so often, a process of these workers' pools; remembers when it was killed.

    Args:
        workers: Whose processes.
        every: Seconds; None: never.

    Attributes:
        deaths: When which process was killed.
    """

    def __init__(self, *workers: Worker, every: float | None) -> None:
        super().__init__(name="killer", daemon=True)
        self.workers, self.every = workers, every
        self.deaths: dict[int, float] = {}
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Return when nobody will be killed any more."""
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Kill."""
        chance = random.Random(0)
        while not self._is_over.wait(self.every):
            with suppress(psutil.Error, ProcessLookupError, IndexError):
                victim = chance.choice(chance.choice(self.workers).children())
                # Not when it is gone: that is seen long after its lock is free, and until then it
                # may be chosen again.
                self.deaths.setdefault(victim, time.monotonic())
                kill_process(victim)
