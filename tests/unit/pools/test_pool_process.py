"""A worker's process knows its keeper client, and whether a shutdown has begun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.pools import pool_process


class Client:
    """A keeper client of one lock, which notes what is announced."""

    def __init__(self) -> None:
        self.redlock: Any = SimpleNamespace()
        self.announced: list[tuple[str, float, str]] = []
        self.is_over = False
        self.is_revoked = False
        self.waits = 0

    def announcer(self, key: str, ttl: float) -> Any:
        return lambda owner: self.announced.append((key, ttl, owner))

    def withdraw_attempts(self) -> None:
        self.announced.clear()

    def is_shutting_down(self) -> bool:
        return self.is_over

    def announce_wait(self) -> None:
        self.waits += 1

    def is_wait_revoked(self) -> bool:
        return self.is_revoked


@pytest.fixture
def client() -> Iterator[Any]:
    client: Any = Client()
    pool_process.set_keeper_client(client)
    yield client
    pool_process.set_keeper_client(None)
    pool_process.note_shutdown(is_under_way=False)


def test_a_process_without_a_keeper_announces_nothing() -> None:
    redlock: Any = SimpleNamespace()
    assert pool_process.keeper_client() is None
    assert pool_process.announcer(redlock, "k", 1.0) is None
    pool_process.withdraw_attempts()
    assert not pool_process.is_shutting_down()


def test_a_wait_is_announced_and_may_be_revoked(client: Any) -> None:
    pool_process.announce_wait()
    assert client.waits == 1
    assert not pool_process.is_wait_revoked()
    client.is_revoked = True
    assert pool_process.is_wait_revoked()


def test_no_wait_is_revoked_without_a_keeper() -> None:
    pool_process.announce_wait()
    assert not pool_process.is_wait_revoked()


def test_an_attempt_is_announced_until_it_is_withdrawn(client: Any) -> None:
    announce = pool_process.announcer(client.redlock, "k", 2.5)
    assert announce is not None
    announce("owner-1")
    assert client.announced == [("k", 2.5, "owner-1")]
    pool_process.withdraw_attempts()
    assert client.announced == []


def test_the_lock_of_another_app_is_not_the_keepers(client: Any) -> None:
    other: Any = SimpleNamespace()
    assert pool_process.keeper_client(client.redlock) is client
    assert pool_process.keeper_client() is client
    assert pool_process.keeper_client(other) is None
    assert pool_process.announcer(other, "k", 1.0) is None


def test_a_shutdown_is_noted_by_the_process_or_its_keeper(client: Any) -> None:
    assert not pool_process.is_shutting_down()
    client.is_over = True
    assert pool_process.is_shutting_down()
    client.is_over = False
    pool_process.note_shutdown(is_under_way=True)
    assert pool_process.is_shutting_down()


# In a process of its own: this one has other threads.
FORKING = """
import os
from types import SimpleNamespace
from celery_redlock.pools import pool_process
client = SimpleNamespace()
pool_process.set_keeper_client(client)
child = os.fork()
if not child:
    os._exit(pool_process.keeper_client() is not None)
assert os.waitpid(child, 0)[1] == 0
assert pool_process.keeper_client() is client
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a prefork pool forks")
def test_what_a_body_forks_leaves_the_rows_of_its_process_alone() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
