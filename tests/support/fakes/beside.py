"""Threads that run only when they are let, so that a test chooses where they come in between."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Beside:
    """Threads of the code under test; each runs until it would wait, or ends, and then waits."""

    def __init__(self) -> None:
        self._living: list[threading.Semaphore] = []
        self._back = threading.Semaphore(0)
        self._own = threading.local()

    def start(self, run: Callable[[], None], name: str) -> None:
        """Take the place of `dispatch.start_beside`: the thread runs at the next turn."""
        turn = threading.Semaphore(0)

        def begin() -> None:
            self._own.turn = turn
            turn.acquire()
            try:
                run()
            finally:
                self._living.remove(turn)
                self._back.release()

        self._living.append(turn)
        threading.Thread(target=begin, name=name, daemon=True).start()

    def turn(self, times: int = 1) -> None:
        """Let each thread run until it waits or ends, `times` times."""
        for _ in range(times):
            for one in list(self._living):
                one.release()
                self._back.acquire()

    def wait(self) -> None:
        """Wait for the next turn, on such a thread."""
        self._back.release()
        self._own.turn.acquire()

    @property
    def count(self) -> int:
        """How many threads have not ended."""
        return len(self._living)
