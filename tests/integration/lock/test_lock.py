"""Locks with other keys and prefixes, and on one node, on real servers."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import LockHeld
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock

# ---- acquire


def test_locks_with_different_keys_are_independent(redlock: TaskLock, rival: TaskLock) -> None:
    names = ["k", "K", "k ", "k:floor", "{k}", "k}", "ключ", "k" * 1024, "k\n\r\0"]
    leases = [redlock.acquire(name) for name in names]
    for lease in leases:
        with pytest.raises(LockHeld):
            rival.acquire(lease.key)
        lease.ensure()


def test_locks_with_different_prefixes_are_independent(
    five: Servers, redlock: TaskLock, new_redlock: NewRedlock
) -> None:
    other = new_redlock(five.urls, key_prefix="another")
    redlock.acquire("k")
    lease = other.acquire("k")
    other.release(lease, keep=60, done="task")
    with five[0].client() as client:
        keys = {key.decode() for key in client.scan_iter(count=1000)}
    assert {key for key in keys if not key.startswith("redlock:")} == {
        "another:{k}", "another:{k}:floor", "another:{k}:done:task",
    }  # fmt: skip


def test_one_node_is_a_quorum_of_one(five: Servers, new_redlock: NewRedlock) -> None:
    single, rival = new_redlock(five.urls[:1]), new_redlock(five.urls[:1])
    with single.lock("k") as lease:
        with pytest.raises(LockHeld):
            rival.acquire("k")
        single.extend(lease)
    assert rival.acquire("k").token > lease.token
