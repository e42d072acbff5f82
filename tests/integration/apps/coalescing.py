"""Tasks that bring a copy up to date: what they read is what the test last wrote."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from billiard import current_process
from celery.signals import after_task_publish, before_task_publish, task_prerun

from celery_redlock import singleton_task
from celery_redlock.config.options import Lifetime, OnConflict
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
LIFETIMES = (Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_AND_WHILE_EXECUTING)


def source(key: str) -> Path:
    return inside.folder / f"source-{key}"


def write(key: str, value: int) -> None:
    new = source(key).with_suffix(".new")
    new.write_text(str(value))
    new.replace(source(key))


def make(lifetime: Lifetime, *, late: bool) -> Any:
    @singleton_task(
        app=app,
        name=f"{__name__}.{lifetime.value}.{'late' if late else 'early'}",
        lock_key="{key}",
        lock_lifetime=lifetime.value,
        lock_on_conflict=OnConflict.COALESCE.value,
        lock_ttl=8,
        acks_late=late,
        reject_on_worker_lost=late,
    )
    def refresh(key: str, gate: str | None = None) -> int:
        saw = int(source(key).read_text())
        inside.run(gate, key=key, saw=saw)
        return saw

    return refresh


early: dict[Lifetime, Any] = {lifetime: make(lifetime, late=False) for lifetime in LIFETIMES}
late: dict[Lifetime, Any] = {lifetime: make(lifetime, late=True) for lifetime in LIFETIMES}


@task_prerun.connect
def on_prerun(**_: Any) -> None:
    inside.note("taken")


# --- a process that dies as it puts its message back ----------------------------------------------


def doom(key: str, moment: str) -> None:
    """Let the process die that next sends a message for `key`, `before` or `after` it does."""
    (inside.folder / f"{moment}-{key}").touch()


def die_if_doomed(moment: str, body: Any) -> None:
    doomed = inside.folder / f"{moment}-{body[0][0]}"
    if current_process().name.startswith("ForkPool") and doomed.exists():
        doomed.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@before_task_publish.connect
def before(body: Any, **_: Any) -> None:
    die_if_doomed("before", body)


@after_task_publish.connect
def after(body: Any, **_: Any) -> None:
    die_if_doomed("after", body)
