"""Locks of this and of other packages behind one face, for tests that strike them alike.

A locker acquires a key once, without waiting, and says until when it may be trusted by its own
word; whoever has it releases it in the way that the package's own users do.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock.redlock import Redlock, RedlockError
from celery_redlock.redlock.clock import SystemClock

TTL_S = 1.0
MAX_SKEW_S = 0.1
_SILENT_S = 0.1
_now = SystemClock().now


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that is held by its package's word.

    Attributes:
        until: When the lock ends, seconds on the boot-time clock.
        token: Its fencing token; None: the package has none.
        release: Releases it.
    """

    until: float
    token: int | None
    release: Callable[[], object]


Acquire = Callable[[str], "Held | None"]
Locker = Callable[[Sequence[str]], Acquire]


def ours(urls: Sequence[str]) -> Acquire:
    """This package, with its restart guard."""
    redlock = Redlock(
        urls, node_timeout=_SILENT_S, max_ttl=TTL_S, max_clock_skew=MAX_SKEW_S, restart_guard=True
    )

    def acquire(key: str) -> Held | None:
        try:
            lease = redlock.acquire(key, TTL_S)
        except RedlockError:
            return None
        return Held(lease.deadline, lease.token, lambda: redlock.release(lease))

    return acquire


def redlock_py(urls: Sequence[str]) -> Acquire:
    """The lock that the Redis page names for Python."""
    module = _package("redlock")
    places = [urlsplit(url) for url in urls]
    lock = module.Redlock(
        [{"host": at.hostname, "port": at.port, "db": 0, **_impatient()} for at in places],
        retry_count=1,
    )

    def acquire(key: str) -> Held | None:
        asked_at = _now()
        with suppress(module.MultipleRedlockException):
            if had := lock.lock(key, round(TTL_S * 1000)):
                until = asked_at + TTL_S * 0.99 - 0.002
                return Held(until, None, lambda: lock.unlock(had))
        return None

    return acquire


def pottery(urls: Sequence[str]) -> Acquire:
    """Redlock with the face of Python's locks."""
    module = _package("pottery")
    masters = {_client(url) for url in urls}

    def acquire(key: str) -> Held | None:
        lock = module.Redlock(key=key, masters=masters, auto_release_time=TTL_S)
        asked_at = _now()
        try:
            had = lock.acquire(blocking=False)
        except module.exceptions.PrimitiveError:
            return None
        return Held(asked_at + TTL_S * 0.99 - 0.002, None, lock.release) if had else None

    return acquire


def redis_py(urls: Sequence[str]) -> Acquire:
    """redis-py's own lock, on one server."""
    client = _client(urls[0])

    def acquire(key: str) -> Held | None:
        lock = client.lock(key, timeout=TTL_S, blocking=False)
        asked_at = _now()
        return Held(asked_at + TTL_S, None, lock.release) if lock.acquire() else None

    return acquire


def python_redis_lock(urls: Sequence[str]) -> Acquire:
    """A lock on one server that wakes who waits."""
    new, client = _package("redis_lock").Lock, _client(urls[0])

    def acquire(key: str) -> Held | None:
        lock = new(client, key, expire=round(TTL_S))
        asked_at = _now()
        return Held(asked_at + TTL_S, None, lock.release) if lock.acquire(blocking=False) else None

    return acquire


def celery_singleton(urls: Sequence[str]) -> Acquire:
    """What celery-singleton asks of its backend."""
    backend = _package("celery_singleton.backends.redis").RedisBackend(urls[0], **_impatient())

    def acquire(key: str) -> Held | None:
        asked_at = _now()
        had = backend.lock(key, uuid.uuid4().hex, expiry=round(TTL_S))
        return Held(asked_at + TTL_S, None, lambda: backend.unlock(key)) if had else None

    return acquire


def celery_once(urls: Sequence[str]) -> Acquire:
    """What celery-once asks of its backend."""
    module = _package("celery_once.backends.redis")
    module.redis = None  # it keeps the first server that the process gave it
    backend = module.Redis({"url": urls[0]})
    already = _package("celery_once.tasks").AlreadyQueued

    def acquire(key: str) -> Held | None:
        asked_at = _now()
        try:
            backend.raise_or_lock(key, TTL_S)
        except already:
            return None
        return Held(asked_at + TTL_S, None, lambda: backend.clear_lock(key))

    return acquire


OURS = "celery-redlock"
ON_QUORUMS: dict[str, Locker] = {OURS: ours, "redlock-py": redlock_py, "pottery": pottery}
ON_ONE: dict[str, Locker] = {
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "celery-singleton": celery_singleton,
    "celery-once": celery_once,
}
LOCKERS = ON_QUORUMS | ON_ONE


def _impatient() -> dict[str, Any]:
    return {"socket_timeout": _SILENT_S, "retry": Retry(NoBackoff(), 0)}


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, **_impatient())


def _package(name: str) -> Any:
    """Import a package whose code warns when it is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)
