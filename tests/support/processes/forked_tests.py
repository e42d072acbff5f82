"""Runs tests, each time in a fresh fork: `python forked_tests.py`, in the folder of a source tree.

A line of JSON in: the arguments of pytest. A line of JSON out: its exit status and what it printed.
What takes long to import is imported once; the package and its tests are imported in each fork.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import celery.app.amqp
import celery.app.task
import celery.result
import celery.worker.request  # noqa: F401
import hypothesis  # noqa: F401
import kombu.transport.redis  # noqa: F401
import pytest
import redis.asyncio  # noqa: F401


def main() -> None:
    """Answer until the input ends."""
    sys.path[0] = str(Path.cwd())
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as printed:
            status = _in_fork(json.loads(line), printed.fileno())
            printed.seek(0)
            sys.stdout.write(json.dumps([status, printed.read()]) + "\n")
            sys.stdout.flush()


def _in_fork(arguments: list[str], output: int) -> int:
    pid = os.fork()
    if not pid:
        os.setsid()
        for stream in (1, 2):
            os.dup2(output, stream)
        status = 70
        try:
            status = int(pytest.main(arguments))
            sys.stdout.flush()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            raise
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
