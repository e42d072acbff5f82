"""The tasks of the smoke tests: shared ones, as pytest-celery's worker wants them.

They write down their tokens and wait until the test opens the gate, in the worker's volume.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery_redlock import singleton_task
from tests.support.processes.inside import FOLDER_VARIABLE, GATE_PATIENCE


@singleton_task(lock_key="{account_id}")
def sync(account_id: str, *, fencing_token: int) -> int:
    return _run(fencing_token)


@singleton_task(lock_key="{account_id}", lock_ttl=8)
def sync_briefly(account_id: str, *, fencing_token: int) -> int:
    """Have a lock that a killed worker leaves behind for no longer than eight seconds."""
    return _run(fencing_token)


def _run(token: int) -> int:
    volume = Path(os.environ[FOLDER_VARIABLE])
    with (volume / "tokens").open("a") as tokens:
        tokens.write(f"{token}\n")
    deadline = time.monotonic() + GATE_PATIENCE
    while not (volume / "gate").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody opened the gate")
        time.sleep(0.01)
    return token
