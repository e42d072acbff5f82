"""The producer: calls a task of each lifetime twice, in a process where one library is active.

`python -m tests.integration.compat.producer` notes what it has published and what came of it. The
test, which follows, lets the worker take the messages and opens the gates.
"""

from __future__ import annotations

import uuid
from typing import Any

from celery import states
from celery.result import AsyncResult

from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.apps.beside import active, inside, task_of
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.inside import Notes

from .libraries import WAITING


def main() -> None:
    """Play each lifetime, then the two that wait for another run."""
    for lifetime in Lifetime:
        call_twice(lifetime, OnConflict.SKIP)
    for lifetime in WAITING:
        call_twice(lifetime, OnConflict.WAIT)


def call_twice(lifetime: Lifetime, policy: OnConflict) -> None:
    """Call the task twice with one key; the second call, if it may wait, once the first runs."""
    key = uuid.uuid4().hex
    options = {"queue": key} if policy is OnConflict.SKIP else {}
    task = task_of(lifetime, policy)
    calls = []
    for number in range(2):
        if number and policy is OnConflict.WAIT:
            eventually(lambda: any(note.more.get("key") == key for note in begun()), "it runs")
        with active.trace():
            calls.append(task.apply_async((key, key), **options))
    told = {"lifetime": lifetime.value, "policy": policy.value, "key": key}
    inside.note("published", **told, ids=[call.id for call in calls])
    inside.note("ended", **told, states=[state_of(call) for call in calls])


def begun() -> list[Any]:
    """Return the runs that have begun."""
    return [note for note in Notes(inside.folder) if note.event == "begin"]


def state_of(call: AsyncResult[Any]) -> str:
    """Return the state in which a call ends."""
    call.get(propagate=False, timeout=PATIENCE)
    assert call.state in states.READY_STATES
    return call.state


if __name__ == "__main__":
    main()
