"""Tasks that notice what goes wrong between greenlets and real threads."""

from __future__ import annotations

import logging
import time

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.redlock import keeper
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
logger = logging.getLogger("celery_redlock.of_a_test")
IDLE_S = 0.2
vars(keeper)["_IDLE_S"] = IDLE_S


class SlowHandler(logging.Handler):
    """Lets others run while it holds its lock, as one does that writes to a full pipe."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.02)


logging.getLogger("celery_redlock").addHandler(SlowHandler())


@singleton_task(app=app, lock_key="{key}")
def napping(key: str, seconds: float) -> float:
    """Return how long the first wait of the body took."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began


@app.task
def chatting(seconds: float) -> None:
    """Hold the lock of the log's handler most of the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        logger.warning("chatting")


@singleton_task(
    app=app, lock_key="{key}", lock_ttl=0.5, lock_max_hold=0.5, lock_on_lost="continue", bind=True
)
def overstaying(self: SingletonTask, key: str, gate: str) -> None:
    """Hold the lock for longer than is allowed: the keeper says so."""
    inside.run(gate, key=key)


@singleton_task(app=app, lock_key="{key}", lock_ttl=3, bind=True)
def lasting(self: SingletonTask, key: str, gate: str) -> bool:
    inside.run(gate, key=key)
    assert self.lease is not None
    return self.lease.lost
