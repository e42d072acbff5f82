"""State of a worker's process: its keeper client, and whether a shutdown has begun."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_redlock.redlock.task_lock import TaskLock

if TYPE_CHECKING:
    from .keeper_client import KeeperClient

_client: KeeperClient | None = None
_is_shutting_down = False


def set_keeper_client(client: KeeperClient | None) -> None:
    """Set the keeper client of the calling process; None: it renews its leases itself."""
    global _client  # noqa: PLW0603  # a process of the prefork pool has one
    _client = client


def keeper_client(redlock: TaskLock | None = None) -> KeeperClient | None:
    """Return the keeper client of the calling process, or None if it has none.

    Args:
        redlock: Lock whose leases are to be renewed. None is returned if the keeper does not renew
            them: the task of another app may run inside a body, and its lock may be on other nodes.
            None: any lock.
    """
    if _client and (redlock is None or redlock is _client.redlock):
        return _client
    return None


def announcer(redlock: TaskLock, key: str, ttl: float) -> Callable[[str], None] | None:
    """Return a function that announces the owner of each attempt to acquire `key`, or None.

    In a process of the prefork pool, attempts are announced to the keeper: if the process is killed
    before its run has begun, the keeper releases what the attempt was granted.
    """
    client = keeper_client(redlock)
    return client.announcer(key, ttl) if client else None


def withdraw_attempts() -> None:
    """Withdraw the announced attempts: none is under way.

    What they were granted is held by a run or by a published message, or is released.
    """
    if _client:
        _client.withdraw_attempts()


def announce_wait() -> None:
    """Announce that the execution of the last attempt waits for its lock: it may be revoked."""
    if _client:
        _client.announce_wait()


def is_wait_revoked() -> bool:
    """Tell whether the main process has noted that an execution that waits here is revoked."""
    return bool(_client and _client.is_wait_revoked())


def note_shutdown(*, is_under_way: bool) -> None:
    """In a worker's main process: note whether the worker is being shut down."""
    global _is_shutting_down  # noqa: PLW0603  # a worker belongs to its process
    _is_shutting_down = is_under_way


def is_shutting_down() -> bool:
    """Tell whether the worker of the calling process is being shut down: waits should end."""
    return _is_shutting_down or (_client is not None and _client.is_shutting_down())


if hasattr(os, "register_at_fork"):
    # A process that a body forks would write to the rows of its parent.
    os.register_at_fork(after_in_child=partial(set_keeper_client, None))
