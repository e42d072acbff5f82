"""Tasks of pool processes in which a thread uses up the memory when the test says so.

The setting `hungry_for` is how much it uses, MiB; without it, all there is.
"""

from __future__ import annotations

import os
import threading

from celery.signals import worker_process_init

from celery_redlock import SingletonTask, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
_MIB = 1 << 20
_BLOCKS = [_MIB >> shift for shift in range(12)] + list(range(496, 0, -16))
"""Sizes of what fills the rest of the memory: of each kind that malloc and Python keep apart."""
_hoard = [[b""] for _ in range(300_000)]


@singleton_task(app=app, lock_key="{key}", bind=True, lock_ttl=60)
def early(self: SingletonTask, key: str) -> int | None:
    return inside.run(key=key)


@singleton_task(
    app=app, lock_key="{key}", bind=True, lock_ttl=60, acks_late=True, reject_on_worker_lost=True
)
def late(self: SingletonTask, key: str) -> int | None:
    return inside.run(key=key)


@worker_process_init.connect
def start_eating(**_: object) -> None:
    threading.Thread(target=_eat_when_told, daemon=True).start()


def _eat_when_told() -> None:
    """Use the memory once the gate `eat-<pid>` is open, and then write to the file `full-<pid>`."""
    pid = os.getpid()
    full = os.open(inside.folder / f"full-{pid}", os.O_CREAT | os.O_WRONLY)
    try:
        inside.wait_at(f"eat-{pid}")
    except TimeoutError:
        return  # nobody told it
    if hungry_for := app.conf.get("hungry_for"):
        _hoard[0][0] = b"\1" * (hungry_for * _MIB)
    else:
        _fill()
    _say(full)


def _fill() -> None:
    """Use all memory there is, with no object but those that are kept: this goes on without any."""
    cells = iter(_hoard)
    for size in _BLOCKS * 2:
        try:
            for cell in cells:
                cell[0] = b"\1" * size
        except MemoryError:
            pass


def _say(full: int) -> None:
    while True:
        try:
            os.write(full, b"1")
        except MemoryError:
            continue
        return
