"""Tasks that end in every way there is, as they are told."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_redlock import SingletonTask, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
app.conf.redlock_ttl = 60.0  # a release comes sooner: judges.endings.LIMIT_S
MIB = 1 << 20
IN_C_S = {"c": 4.0, "c for ever": 1e6}


class Wrong(Exception):
    """What a task fails with."""


@singleton_task(app=app, lock_key="{key}", bind=True)
def early(self: SingletonTask, key: str, gate: str | None = None, how: str = "return") -> Any:
    return body(self, key, gate, how)


@singleton_task(app=app, lock_key="{key}", bind=True, acks_late=True, reject_on_worker_lost=True)
def late(self: SingletonTask, key: str, gate: str | None = None, how: str = "return") -> Any:
    return body(self, key, gate, how)


@singleton_task(app=app, lock_key="{key}", bind=True, acks_late=True, lock_ttl=3)
def brief(self: SingletonTask, key: str, gate: str | None = None, how: str = "return") -> Any:
    return body(self, key, gate, how)


@singleton_task(app=app, lock_key="{key}", bind=True, lock_ttl=20, lock_delay=40)
def delayed(self: SingletonTask, key: str, gate: str | None = None) -> Any:
    return body(self, key, gate, "return")


@singleton_task(app=app, lock_key="{key}", bind=True)
def nesting(self: SingletonTask, key: str, gate: str | None = None, depth: int = 0) -> Any:
    """Hold `depth` more locks, one in another: `<key>-1`, …"""
    if depth:
        inner = nesting.apply((key.partition("-")[0] + f"-{depth}", gate, depth - 1))
        return inner.get(disable_sync_subtasks=False)
    return body(self, key, gate, "return")


other = Celery("other", set_as_current=False)
other.conf.update(app.conf.changes or {}, redlock_key_prefix="other")


@singleton_task(app=other, lock_key="{key}", lock_ttl=3, bind=True)
def of_another_app(self: SingletonTask, key: str, gate: str) -> bool:
    inside.note("begin", key=key)
    inside.wait_at(gate)
    assert self.lease is not None
    return self.lease.lost


@singleton_task(app=app, lock_key="{key}")
def calling_another_app(key: str, gate: str) -> Any:
    return of_another_app.apply((key, gate)).get(disable_sync_subtasks=False)


def body(task: SingletonTask, key: str, gate: str | None, how: str) -> Any:
    inside.note("begin", key=key)
    inside.wait_at(gate)
    is_redelivered = (task.request.delivery_info or {}).get("redelivered")
    match how:
        case "raise":
            raise Wrong(key)
        case "exit" if not is_redelivered:
            raise SystemExit(3)
        case "retry":
            retry_once(task)
        case "ignore":
            raise Ignore
        case "reject":
            raise Reject("no")
        case "requeue" if not is_redelivered:
            raise Reject("not now", requeue=True)
        case "memory":
            allocate_more_than_allowed()
        case "c" | "c for ever":
            inside.note("in C", key=key)
            try:
                stay_in_c(IN_C_S[how])
            finally:
                inside.note("out of C", key=key)
        case "eat":
            eat()
    return "done"


def retry_once(task: SingletonTask) -> None:
    """Raise Retry, in the first run."""
    if task.request.retries == 0:
        raise task.retry(countdown=0)
    inside.wait_for_earlier_tries()


def stay_in_c(seconds: float) -> None:
    """Keep the interpreter waiting for a lock of the C library: no thread runs, and no handler."""
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)  # as PTHREAD_MUTEX_INITIALIZER leaves it
    libc.pthread_mutex_lock(mutex)
    until = (ctypes.c_long * 2)(int(time.time() + seconds))
    error = libc.pthread_mutex_timedlock(mutex, until)
    assert error == errno.ETIMEDOUT, os.strerror(error)


def allocate_more_than_allowed() -> None:
    """Raise MemoryError, as under a limit of the process's memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 64 * MIB, hard))
    try:
        bytearray(1024 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def eat() -> None:
    """Use ever more memory."""
    eaten = []
    while True:
        eaten.append(b"\0" * MIB)
