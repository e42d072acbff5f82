"""Numbers that the processes of a pool share: none is lost, whoever dies."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from celery_redlock.observers.counts import ROWS, UNKNOWN, LocalCounts, Series, SharedCounts

ACQUIRED = Series("acquired", "t")
HELD = Series("held", "t", is_gauge=True)
OTHERS = Series("acquired", UNKNOWN)
# A process of its own forks: this one has other threads.
FORKING = """
import os, signal
from celery_redlock.observers.counts import Series, SharedCounts
ACQUIRED, HELD = Series("acquired", "t"), Series("held", "t", is_gauge=True)
counts = SharedCounts([ACQUIRED, HELD])

def in_killed_child(index, work):
    pid = os.fork()
    if not pid:
        try:
            counts.begin_process(index)
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="a prefork pool forks")


@pytest.fixture
def counts() -> SharedCounts:
    return SharedCounts([ACQUIRED, HELD, OTHERS])


def assert_runs(code: str) -> None:
    """Run code in a process that may fork."""
    subprocess.run([sys.executable, "-c", FORKING + code], check=True)


def test_numbers_of_this_process_are_added_up() -> None:
    counts = LocalCounts()
    assert counts.read() == {}
    counts.add(ACQUIRED, 1)
    counts.add(ACQUIRED, 2)
    assert counts.read() == {ACQUIRED: 3}


def test_a_series_is_zero_before_anything_happens(counts: SharedCounts) -> None:
    assert counts.read() == {ACQUIRED: 0.0, HELD: 0.0}


@forks
def test_numbers_of_killed_processes_remain() -> None:
    assert_runs("""
def count():
    for _ in range(1000):
        counts.add(ACQUIRED, 1)

counts.add(ACQUIRED, 1)
for index in (0, 1, 0):
    in_killed_child(index, count)
assert counts.read()[ACQUIRED] == 3001, counts.read()
""")


@forks
def test_a_gauge_does_not_count_what_a_dead_process_held() -> None:
    assert_runs("""
reading, writing = os.pipe()

def hold():
    counts.add(HELD, 1)
    os.write(writing, str(counts.read()[HELD]).encode())

in_killed_child(0, hold)
assert os.read(reading, 100) == b"1.0"
assert counts.read()[HELD] == 0.0, counts.read()
""")


def test_a_gauge_begins_at_zero_in_the_next_process_of_the_index(counts: SharedCounts) -> None:
    for index in (0, 0):
        counts.begin_process(index)  # as in two processes, one after the other
        counts.add(HELD, 1)
        counts.add(ACQUIRED, 1)
    assert counts.read() == {ACQUIRED: 2.0, HELD: 1.0}


def test_a_process_that_begins_keeps_the_numbers_of_others(counts: SharedCounts) -> None:
    for one in (ACQUIRED, HELD, OTHERS):
        counts.add(one, 1)
    counts.begin_process(1)  # before that of index 0
    counts.add(ACQUIRED, 1)
    assert counts.read() == {ACQUIRED: 2.0, HELD: 1.0, OTHERS: 1.0}


def test_of_a_dead_process_only_the_gauges_are_left_out(
    counts: SharedCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    monkeypatch.setattr(os, "getpid", lambda: dead.pid)
    counts.begin_process(0)
    counts.add(HELD, 1)
    counts.add(ACQUIRED, 1)
    assert counts.read() == {ACQUIRED: 1.0, HELD: 0.0}


def test_tasks_unknown_before_the_fork_are_counted_together(
    counts: SharedCounts,
) -> None:
    counts.add(Series("acquired", "made later"), 1)
    counts.add(Series("acquired", "made later, too"), 1)
    assert counts.read() == {ACQUIRED: 0.0, HELD: 0.0, OTHERS: 2.0}


def test_a_process_beyond_the_last_row_is_refused(counts: SharedCounts) -> None:
    counts.begin_process(ROWS - 2)
    with pytest.raises(IndexError, match=f"{ROWS} is the limit"):
        counts.begin_process(ROWS - 1)
