"""A process that runs out of memory at each allocation of an acquisition, one after the other.

    python -m tests.support.processes.out_of_memory ALLOCATIONS URL...

It prints how many acquisitions raised MemoryError, and which keys were had. It stays, so that its
keeper can do its work, until its standard input ends.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module

from celery_redlock.redlock.task_lock import TaskLock

TTL_S = 60.0
NODE_TIMEOUT_S = 2.0
"""A busy machine must not be taken for nodes that do not answer."""
_hooks = import_module("_testcapi")  # no type checker knows it


def main(allocations: int, urls: list[str]) -> None:
    """Acquire a lock for each allocation, which fails."""
    redlock = TaskLock(urls, restart_guard=False, max_ttl=TTL_S, node_timeout=NODE_TIMEOUT_S)
    redlock.release(redlock.acquire("warm", TTL_S))
    struck = 0
    for number in range(allocations):
        lease = None
        try:
            _hooks.set_nomemory(number, number + 1)
            try:
                lease = redlock.acquire(f"memory-{number}", TTL_S)
            finally:
                _hooks.remove_mem_hooks()
        except MemoryError:
            struck += 1
        if lease:
            redlock.release(lease)
    # It goes on as if nothing had happened.
    redlock.release(redlock.acquire("warm", TTL_S))
    print(struck, flush=True)  # noqa: T201 - for the test
    sys.stdin.read()


if __name__ == "__main__":
    logging.disable()
    main(int(sys.argv[1]), sys.argv[2:])
