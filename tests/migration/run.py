"""Run one command in a project of the trials: `python run.py once_both delay 1 delay 1`.

Prints the state of each call, and after `work` how many messages were executed.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any


def main() -> None:
    """Run what the command line says."""
    module = importlib.import_module(sys.argv[1])
    app, sync = module.app, module.sync
    words = iter(sys.argv[2:])
    for word in words:
        if word == "delay":
            print(state_of(sync, int(next(words))))  # noqa: T201
        else:
            work(app)


def state_of(sync: Any, account: int) -> str:
    """Call the task; return 'published', or how a duplicate ended."""
    before = queued(sync.app)
    try:
        sync.delay(account)
    except Exception as error:  # noqa: BLE001  # each package has errors of its own
        return type(error).__name__
    return "published" if queued(sync.app) > before else "duplicate"


def queued(app: Any) -> int:
    """Return how many messages wait."""
    with app.connection_for_read() as connection:
        return int(connection.default_channel.client.llen("celery"))


def work(app: Any) -> None:
    """Execute the messages that wait, in a worker with one thread."""
    from celery.contrib.testing.worker import start_worker  # noqa: PLC0415
    from celery.signals import task_postrun  # noqa: PLC0415

    states: list[str] = []

    def note(state: str, **_: object) -> None:
        states.append(state)

    task_postrun.connect(note)
    waiting = queued(app)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60):
        ends = time.monotonic() + 60
        while len(states) < waiting and time.monotonic() < ends:
            time.sleep(0.02)
    print(*states)  # noqa: T201


if __name__ == "__main__":
    main()
