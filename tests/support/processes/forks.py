"""Processes that are forks of a test's own program."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from celery_redlock.redlock.clock import SystemClock


def fork(child: Callable[[], object]) -> int:
    """Run a function in a child, which ends with it. Return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        child()
        status = 0
    except BaseException:  # noqa: BLE001 - it must not go on as a second parent
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def keep_forked(child: Callable[[], object], processes: int, end: float) -> None:
    """Keep so many children at work until `end`, in place of any that is killed.

    Args:
        child: What each does; it returns soon after `end`.
        processes: How many there are at a time.
        end: Seconds on the boot-time clock.

    Raises:
        SystemExit: A child failed.
    """
    now, children = SystemClock().now, set[int]()
    while now() < end or children:
        while len(children) < processes and now() < end:
            children.add(fork(child))
        pid, status = os.wait()
        children.remove(pid)
        if os.waitstatus_to_exitcode(status) not in {0, -signal.SIGKILL}:
            raise SystemExit(f"process {pid} ended with {os.waitstatus_to_exitcode(status)}")
