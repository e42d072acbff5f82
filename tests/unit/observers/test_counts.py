"""Numbers that the processes of a pool share: none is lost, whoever dies."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from functools import partial

import pytest

from celery_redlock.observers.counts import ROWS, UNKNOWN, LocalCounts, Series, SharedCounts

ACQUIRED = Series("acquired", "t")
HELD = Series("held", "t", is_gauge=True)
OTHERS = Series("acquired", UNKNOWN)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a prefork pool forks")


@pytest.fixture
def counts() -> SharedCounts:
    return SharedCounts([ACQUIRED, HELD, OTHERS])


def in_child(task: Callable[[], object]) -> int:
    """Run a function in a forked process that dies by a signal afterwards; reap it."""
    with warnings.catch_warnings():
        # Of eventlet, where another test has imported it, and of Python, beside other threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            task()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid


def test_numbers_of_this_process_are_added_up() -> None:
    counts = LocalCounts()
    assert counts.read() == {}
    counts.add(ACQUIRED, 1)
    counts.add(ACQUIRED, 2)
    assert counts.read() == {ACQUIRED: 3}


def test_a_series_is_zero_before_anything_happens(counts: SharedCounts) -> None:
    assert counts.read() == {ACQUIRED: 0.0, HELD: 0.0}


def test_numbers_of_killed_processes_remain(counts: SharedCounts) -> None:
    def count(index: int) -> None:
        counts.begin_process(index)
        for _ in range(1000):
            counts.add(ACQUIRED, 1)

    counts.add(ACQUIRED, 1)
    for index in (0, 1, 0):
        in_child(partial(count, index))
    assert counts.read()[ACQUIRED] == 3001


def test_a_gauge_does_not_count_what_a_dead_process_held(counts: SharedCounts) -> None:
    def hold() -> None:
        counts.begin_process(0)
        counts.add(HELD, 1)
        seen.append(counts.read()[HELD])
        assert seen == [1.0]

    seen: list[float] = []
    in_child(hold)
    assert counts.read()[HELD] == 0.0


def test_a_gauge_begins_at_zero_in_the_next_process_of_the_index(counts: SharedCounts) -> None:
    for index in (0, 0):
        counts.begin_process(index)  # as in two processes, one after the other
        counts.add(HELD, 1)
        counts.add(ACQUIRED, 1)
    assert counts.read() == {ACQUIRED: 2.0, HELD: 1.0}


def test_tasks_that_were_not_known_before_the_fork_are_counted_together(
    counts: SharedCounts,
) -> None:
    counts.add(Series("acquired", "made later"), 1)
    counts.add(Series("acquired", "made later, too"), 1)
    assert counts.read() == {ACQUIRED: 0.0, HELD: 0.0, OTHERS: 2.0}


def test_a_process_beyond_the_last_row_is_refused(counts: SharedCounts) -> None:
    counts.begin_process(ROWS - 2)
    with pytest.raises(IndexError, match=f"{ROWS} is the limit"):
        counts.begin_process(ROWS - 1)
