"""Other packages' locks, each as what acquires and releases one lock again and again."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .names import (
    NODE_REDLOCK,
    ONCE,
    POTTERY,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    REDLOCK_PY,
    SINGLETON,
    UNIVERSAL,
)
from .node_peers import NotInstalled, node_peer
from .sampling import Block, Call, timed

TTL_S = 5
SILENT_S = 0.05
"""How long peers on a quorum wait for a silent node: as long as this package does, and once."""


def _impatient() -> dict[str, Any]:
    return {"socket_timeout": SILENT_S, "retry": Retry(NoBackoff(), 0)}


Peer = Callable[[Sequence[str], ExitStack], Call]
_LOCKS = count()


def package(name: str) -> Any:
    """Import a peer, whose code warns when it is compiled.

    Raises:
        ImportError: It is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(name)


def conf_of_peer(name: str, url: str) -> dict[str, Any]:
    """Return the settings of an app that a package for Celery needs; our own has no use for them.

    Args:
        name: Its name on the page.
        url: The server that it locks on.
    """
    if name == SINGLETON:
        return {"singleton_backend_url": url, "singleton_lock_expiry": 3600}  # as ours
    if name == ONCE:
        settings = {"url": url, "default_timeout": 3600}
        return {"ONCE": {"backend": "celery_once.backends.Redis", "settings": settings}}
    return {}


def forget_servers() -> None:
    """Have packages for Celery close and forget the first server that this process gave them."""
    for module, attribute in (
        ("celery_singleton.backends", "_backend"),
        ("celery_once.backends.redis", "redis"),
    ):
        try:
            names = vars(package(module))
        except ImportError:
            continue
        if known := names[attribute]:
            getattr(known, "redis", known).close()
        names[attribute] = None


def new_key() -> str:
    """Return a key that nobody else uses."""
    return f"bench-{uuid.uuid4().hex[:8]}-{next(_LOCKS)}"


def client(url: str, stack: ExitStack, **options: Any) -> redis.Redis:
    """Return a client that is closed at the end."""
    made = redis.Redis.from_url(url, **options)
    stack.callback(made.close)
    return made


def redlock_py(urls: Sequence[str], stack: ExitStack) -> Call:
    places = [urlsplit(url) for url in urls]
    nodes = [
        {"host": place.hostname, "port": place.port, "db": 0, **_impatient()} for place in places
    ]
    module = package("redlock")
    lock = module.Redlock(nodes)
    for server in lock.servers:
        stack.callback(server.close)
    key = new_key()

    def acquire_and_release() -> bool:
        try:
            had = lock.lock(key, TTL_S * 1000)
        except module.MultipleRedlockException:
            return False  # a node did not answer; the lock may be held, and who has it isn't told
        if had:
            lock.unlock(had)
        return bool(had)

    return acquire_and_release


def pottery(urls: Sequence[str], stack: ExitStack) -> Call:
    module = package("pottery")
    masters = {client(url, stack, **_impatient()) for url in urls}
    key = new_key()

    def acquire_and_release() -> bool:
        lock = module.Redlock(key=key, masters=masters, auto_release_time=TTL_S)
        try:
            lock.acquire()
            lock.release()
        except module.exceptions.PrimitiveError:
            return False  # no majority answered in time
        return True

    return acquire_and_release


def python_redis_lock(urls: Sequence[str], stack: ExitStack) -> Call:
    new = package("redis_lock").Lock
    on_one, key = client(urls[0], stack), new_key()

    def acquire_and_release() -> None:
        lock = new(on_one, key, expire=TTL_S)
        lock.acquire()
        lock.release()

    return acquire_and_release


def redis_py(urls: Sequence[str], stack: ExitStack) -> Call:
    on_one, key = client(urls[0], stack), new_key()

    def acquire_and_release() -> None:
        lock = on_one.lock(key, timeout=TTL_S)
        lock.acquire()
        lock.release()

    return acquire_and_release


def celery_singleton(urls: Sequence[str], stack: ExitStack) -> Call:
    backend = package("celery_singleton.backends.redis").RedisBackend(urls[0])
    stack.callback(backend.redis.close)
    key = new_key()

    def acquire_and_release() -> None:
        if backend.lock(key, "task-id", expiry=TTL_S):
            backend.unlock(key)

    return acquire_and_release


def celery_once(urls: Sequence[str], stack: ExitStack) -> Call:
    module = package("celery_once.backends.redis")
    module.redis = None  # it keeps the first server that the process gave it
    backend = module.Redis({"url": urls[0]})
    stack.callback(backend.redis.close)
    key = new_key()

    def acquire_and_release() -> None:
        backend.raise_or_lock(key, TTL_S)
        backend.clear_lock(key)

    return acquire_and_release


IN_PYTHON: dict[str, Peer] = {
    REDLOCK_PY: redlock_py,
    POTTERY: pottery,
    REDIS_PY: redis_py,
    PYTHON_REDIS_LOCK: python_redis_lock,
    SINGLETON: celery_singleton,
    ONCE: celery_once,
}
IN_NODE = (NODE_REDLOCK, UNIVERSAL)
ALL = (*IN_PYTHON, *IN_NODE)
ON_QUORUMS = (REDLOCK_PY, POTTERY, *IN_NODE)


def opened(
    names: Sequence[str], urls: Sequence[str], stack: ExitStack
) -> tuple[dict[str, Block], dict[str, str]]:
    """Return those of these peers that are installed, and why the others are missing."""
    blocks: dict[str, Block] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            if name in IN_NODE:
                blocks[name] = stack.enter_context(node_peer(name, urls))
            else:
                blocks[name] = timed(IN_PYTHON[name](urls, stack))
        except (ImportError, NotInstalled) as error:
            missing[name] = str(error)
    return blocks, missing
