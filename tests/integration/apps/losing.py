"""Tasks that lose their lease while they sleep, compute, wait or return; and bystanders."""

from __future__ import annotations

import math
import random
import time
from typing import Any

import redis
from celery import Task

from celery_redlock import LeaseLost, SingletonTask, current_lease, singleton_task
from celery_redlock.redlock.protocol.scripts import lock_keys
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
LONG_S = 600.0
"""Longer than a test waits."""
THIEF = "somebody else"


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def compute(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def wait_for_a_reply(seconds: float) -> None:
    with redis.Redis.from_url(app.conf.result_backend) as client:
        client.blpop(["nothing ever comes"], timeout=seconds)


BODIES = {"sleep": sleep, "compute": compute, "wait for a reply": wait_for_a_reply}


@singleton_task(app=app, lock_key="{key}", lock_ttl=1)
def aborted(key: str, how: str, seconds: float = LONG_S, *, goes_on: bool = False) -> str:
    """Do something for so long; then compute, if it goes on."""
    inside.note("begin", key=key)
    try:
        BODIES[how](seconds)
        if goes_on:
            compute(LONG_S)
    except LeaseLost:
        inside.note("interrupted", key=key)
        raise
    inside.note("end", key=key)
    return "done"


@singleton_task(app=app, lock_key="{key}", lock_ttl=1, lock_on_lost="continue", bind=True)
def continued(self: SingletonTask, key: str, gate: str | None = None) -> list[Any]:
    inside.run(gate, key=key)
    assert self.lease is not None
    return [self.lease.lost, self.lease.remaining()]


@singleton_task(app=app, lock_key="{key}", lock_ttl=8, bind=True)
def looking(self: SingletonTask, key: str, gate: str) -> list[float]:
    """Look at the lease thousands of times until the gate opens; return the most it had left."""
    assert self.lease is not None
    inside.note("begin", key=key)
    most = 0.0
    for _ in range(300):
        most = max(self.lease.remaining() for _ in range(100))
        time.sleep(0.01)
    inside.note("looked", key=key)
    inside.wait_at(gate)
    return [most, self.lease.remaining(), self.lease.lost]


# --- losses as the body returns, and those who stand by -------------------------------------------


@singleton_task(app=app, lock_key="{key}", lock_ttl=0.3, bind=True)
def robbed(self: SingletonTask, key: str) -> str:
    """Be robbed, and return in the moment in which that is noticed."""
    assert self.lease is not None
    lock, floor = lock_keys("redlock", self.lease.key)
    for url in app.conf.redlock_nodes:
        with redis.Redis.from_url(url) as node:
            node.set(lock, THIEF, px=2000)
            node.set(floor, self.lease.token + 1)
    while not self.lease.lost:
        time.sleep(0.001)
    time.sleep(random.choice([0.0, 0.0, 0.0005, 0.001]))
    return "done"


@app.task(bind=True)
def bystander(self: Task[Any, Any]) -> bool:
    """Tell whether a task that has nothing to do with locks is left alone."""
    sum(range(1000))
    time.sleep(0.001)
    sum(range(1000))
    return current_lease() is None


@singleton_task(app=app, lock_key="{key}")
def other(key: str) -> str:
    time.sleep(0.002)
    return "done"


# --- one call into C, without end -----------------------------------------------------------------


def power(size: float) -> None:
    """Raise to a power, of twice the work for each step."""
    7 ** round(2 ** (size / math.log2(3)))


def hog(seconds: float) -> None:
    """Hold the interpreter lock for at least `seconds` in a single call."""
    size, took = 20.0, 0.0
    while took < seconds:
        began = time.monotonic()
        power(size)
        took = time.monotonic() - began
        # A sample first, then once more if that was not enough.
        size += math.log2(1.2 * seconds / took)


@singleton_task(app=app, lock_key="{key}", lock_ttl=0.4, bind=True)
def hogging_in_vain(self: SingletonTask, key: str) -> list[Any]:
    """Hold the interpreter lock for three ttls, where that also stops the keeper."""
    assert self.lease is not None
    hog(1.2)
    return [self.lease.lost, self.lease.remaining()]
