"""A process that only publishes does not load what executes messages."""

from __future__ import annotations

import subprocess
import sys

EXECUTING = (
    "celery_redlock.execution.execution", "celery_redlock.execution.outcomes",
    "celery_redlock.execution.run", "celery_redlock.messages.requeue",
    "celery_redlock.pools.keeper_client", "celery_redlock.pools.prefork_keeper",
    "celery_redlock.worker.bootsteps", "celery_redlock.worker.control",
)  # fmt: skip
OTHER_ROOMS = tuple(
    f"celery_redlock.{room}"
    for room in ("beat", "cli", "contrib", "observers", "operate", "testing", "web")
)
PUBLISHING = """
import sys
from celery import Celery
from celery_redlock import singleton_task

app = Celery("bank", broker="memory://", set_as_current=False)
app.conf.redlock_nodes = ["redis://127.0.0.1:1"]

@singleton_task(app=app, name="pay")
def pay(amount): ...

pay.delay(42)
print(*sys.modules, sep="\\n")
"""


def test_a_producer_loads_nothing_that_executes() -> None:
    command = [sys.executable, "-c", PUBLISHING]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(ran.stdout.split())
    assert "celery_redlock.task.publication" in loaded
    assert loaded.isdisjoint(EXECUTING)
    assert not [name for name in loaded if name.startswith(OTHER_ROOMS)]
