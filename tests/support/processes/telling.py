"""A program that tells what it finds when it starts, and ends in the way that it is told to.

python -m tests.support.processes.telling return|exit|say|raise|interrupt|thread|wait
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import tempfile
import threading
import time
from typing import Any


def found() -> dict[str, Any]:
    """Return what a process is given by who starts it, and what its interpreter makes of that."""
    main: Any = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "main": [main.__name__, main.__file__, main.__spec__.name, main.__package__],
        "globals": sorted(vars(main).keys() - {"__annotations__"}),  # of interpreters before 3.14
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": dict(os.environ),
        "temporary": tempfile.gettempdir(),
        "descriptors": {fd: os.path.exists(f"/proc/self/fd/{fd}") for fd in range(200)},  # noqa: PTH110
        "input": sys.stdin.read(),
        "leads": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": [thread.name for thread in threading.enumerate()],
        "flags": list(sys.flags),
        "streams": [
            [stream.encoding, stream.errors, stream.line_buffering]
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "excepthook": sys.excepthook is sys.__excepthook__,
        "tracing": [sys.gettrace(), sys.getprofile()],
    }


def _say_later() -> None:
    time.sleep(0.2)
    sys.stdout.write("the thread has ended\n")


def main(way: str) -> None:
    """Tell, and end."""
    sys.stdout.write(json.dumps(found()) + "\n")
    atexit.register(sys.stdout.write, "at exit\n")
    if way == "exit":
        sys.exit(3)
    if way == "say":
        sys.exit("said")
    if way == "raise":
        raise LookupError("lost")
    if way == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    if way == "wait":
        time.sleep(60)
    if way == "thread":
        threading.Thread(target=_say_later).start()


if __name__ == "__main__":
    main(sys.argv[1])
