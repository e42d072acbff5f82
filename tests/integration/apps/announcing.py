"""Receivers of this package's signals that note what they get; and some that raise."""

from __future__ import annotations

import os
from typing import Any

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.signals import lock_acquired, lock_conflict, lock_lost, lock_released
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
SIGNALS = {
    "lock_acquired": lock_acquired,
    "lock_conflict": lock_conflict,
    "lock_lost": lock_lost,
    "lock_released": lock_released,
}


class Clumsy(Exception):
    """What a receiver raises."""


def listen(name: str) -> None:
    def note(sender: Any, task_id: str, **more: Any) -> None:
        said = {key: str(value) for key, value in more.items() if key == "outcome"}
        lease = more.get("lease")
        if lease:
            said |= {"key": lease.key, "lost": lease.lost}
        inside.note(name, sender=sender.name, of=task_id, **said)

    def raise_it(**_more: Any) -> None:
        raise Clumsy(name)

    SIGNALS[name].connect(raise_it, weak=False)
    SIGNALS[name].connect(note, weak=False)


for _name in SIGNALS:
    listen(_name)


@singleton_task(app=app, lock_key="{key}", lock_ttl=8, lock_on_lost="continue", bind=True)
def told(self: SingletonTask, key: str, gate: str | None = None) -> int:
    inside.run(gate, key=key)
    return os.getpid()
