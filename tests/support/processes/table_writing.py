"""A pool process that writes to the lease table without a pause, read meanwhile, and killed.

    python -m tests.support.processes.table_writing KILLS

Run by the tests in a process without other threads, since it forks. Ends with status 0 if whatever
was read was whole.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time

from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.pools.lease_table import Phase, SharedLeaseTable

ROW = 0


def record_of(pid: int, number: int) -> LeaseRecord:
    """Return the record of the lease `number`; all of it tells which one it is."""
    text = f"{number}-" * (1 + number % 40)
    at = float(number)
    return LeaseRecord(pid, text, text, number, number, at, at, at, text, at, text, None)


def live(table: SharedLeaseTable) -> None:
    """Take one lease after the other, as a pool process does, until killed."""
    pid, parent = os.getpid(), os.getppid()
    for now in itertools.count(1):
        if os.getppid() != parent:
            return
        record = record_of(pid, now)
        table.announce(ROW, LeaseRecord(pid, record.owner, record.key, 0, now))
        table.hold(ROW, record)
        table.begin_release(ROW)
        table.free(ROW)


def main(kills: int) -> None:
    """Read what the process writes, kill it, and read what it has left, again and again."""
    table, chance, read, left_behind = SharedLeaseTable(), random.Random(7), 0, 0
    for _ in range(kills):
        number = 0
        pid = os.fork()
        if not pid:
            try:
                live(table)
            finally:
                os._exit(1)
        until = time.monotonic() + chance.uniform(0.0, 0.02)
        while time.monotonic() < until:
            seen = table.last_lease(ROW)
            if seen:
                assert seen == record_of(seen.pid, seen.token)
            if seen and seen.pid == pid:
                assert seen.token >= number
                read, number = read + 1, seen.token
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        left = table.left_by(pid, ROW)
        if left and left.token:
            assert left == record_of(pid, left.token)
        elif left:
            assert left.owner == left.key == record_of(pid, left.ttl_ms).owner
        else:
            # Killed before its first lease, or between two.
            assert table.phase(ROW) is Phase.FREE
        left_behind += left is not None
        table.free(ROW)
    assert read
    assert left_behind


if __name__ == "__main__":
    main(int(sys.argv[1]))
