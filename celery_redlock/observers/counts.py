"""Numbers by series: in this process, or shared with the processes of a prefork pool."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterable
from typing import NamedTuple

ROWS = 512
"""Rows of shared numbers: the main process's, and one for each pool process at a time."""
UNKNOWN = "(unknown)"
"""Task of numbers whose own task was not known when the pool started."""


class Series(NamedTuple):
    """One number: that of a metric, a task, and an outcome or a bucket of a histogram."""

    metric: str
    task: str
    label: str = ""
    is_gauge: bool = False


class LocalCounts:
    """Numbers of this process."""

    def __init__(self) -> None:
        # The lock is reentrant, since the signal handler that interrupts a body adds, too.
        self._mutex = threading.RLock()
        self._numbers: dict[Series, float] = {}

    def add(self, series: Series, by: float) -> None:
        """Add to a number."""
        with self._mutex:
            self._numbers[series] = self._numbers.get(series, 0.0) + by

    def read(self) -> dict[Series, float]:
        """Return every number."""
        with self._mutex:
            return dict(self._numbers)


class SharedCounts:
    """Numbers that the processes of a prefork pool add to, and its main process reads.

    Each process has a row of its own in memory that was mapped before the fork. So no process waits
    for another, and the numbers of one that is killed remain. The next process with its index in
    the pool adds to the same row. A gauge counts only in the rows of processes that are alive.

    Args:
        series: Every series; numbers of other tasks are added to those of the task `UNKNOWN`.
    """

    def __init__(self, series: Iterable[Series]) -> None:
        # The first cell of a row is the pid of its process.
        self._columns = {one: column for column, one in enumerate(series, start=1)}
        self._width = len(self._columns) + 1
        self._cells = memoryview(mmap.mmap(-1, ROWS * self._width * 8)).cast("d")
        self._mutex = threading.RLock()
        self._first = 0
        self._cells[0] = os.getpid()

    def begin_process(self, index: int) -> None:
        """In a new pool process: use the row of its index in the pool.

        Raises:
            IndexError: The pool has more processes than there are rows.
        """
        # The main process may have held it during the fork.
        self._mutex = threading.RLock()
        if index + 1 >= ROWS:
            raise IndexError(f"metrics of pool process {index} not counted, {ROWS} is the limit")
        self._first = (index + 1) * self._width
        self._cells[self._first] = os.getpid()
        for one, column in self._columns.items():
            if one.is_gauge:
                self._cells[self._first + column] = 0.0

    def add(self, series: Series, by: float) -> None:
        """Add to a number."""
        column = self._columns.get(series) or self._columns[series._replace(task=UNKNOWN)]
        with self._mutex:
            self._cells[self._first + column] += by

    def read(self) -> dict[Series, float]:
        """Return every number, summed over the processes."""
        numbers = dict.fromkeys(self._columns, 0.0)
        for first in range(0, ROWS * self._width, self._width):
            pid = int(self._cells[first])
            if not pid:
                continue
            is_alive = _is_alive(pid)
            for one, column in self._columns.items():
                if is_alive or not one.is_gauge:
                    numbers[one] += self._cells[first + column]
        return {one: n for one, n in numbers.items() if n or one.task != UNKNOWN}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
