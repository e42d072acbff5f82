"""In-memory nodes as servers; what their scripts do is in tests/contract."""

from __future__ import annotations

import threading

import pytest
import redis

from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.protocol.scripts import lock_keys
from celery_redlock.testing import MemoryServer, MemoryServers, start_memory_servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually

LOCK = lock_keys("redlock", "k")[0]


def test_a_lock_is_held_on_every_in_memory_node(
    redlock_nodes: MemoryServers, new_redlock: NewRedlock
) -> None:
    with new_redlock(redlock_nodes.urls).lock("k") as lease:
        eventually(lambda: all(node.execute(("GET", LOCK)) for node in redlock_nodes), "granted")
        assert lease.token > 0
    eventually(lambda: not any(node.execute(("GET", LOCK)) for node in redlock_nodes), "released")


def test_two_of_three_nodes_killed_are_no_quorum(
    redlock_nodes: MemoryServers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(redlock_nodes.urls)
    redlock_nodes[0].kill()
    redlock.release(redlock.acquire("k"))
    redlock_nodes[1].kill()
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    redlock_nodes[1].start()
    redlock.release(redlock.acquire("k", wait=60.0))


def test_two_of_three_nodes_paused_are_no_quorum(
    redlock_nodes: MemoryServers, new_redlock: NewRedlock
) -> None:
    for node in redlock_nodes[:2]:
        node.pause()
    with pytest.raises(QuorumUnavailable):
        new_redlock(redlock_nodes.urls, node_timeout=0.2).acquire("k")
    redlock_nodes.reset()
    new_redlock(redlock_nodes.urls).acquire("k", wait=60.0)


def test_a_waiter_is_woken_by_the_release(
    redlock_nodes: MemoryServers, new_redlock: NewRedlock
) -> None:
    mine, yours = new_redlock(redlock_nodes.urls), new_redlock(redlock_nodes.urls)
    lease = mine.acquire("k", 60.0)
    taken = threading.Event()

    def wait() -> None:
        with yours.lock("k", wait=60.0):
            taken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: all(node.listeners(LOCK) for node in redlock_nodes), "the waiter listens")
    mine.release(lease)
    assert taken.wait(60.0)
    waiting.join()


def test_keys_survive_a_kill_and_not_a_restart() -> None:
    with start_memory_servers(1) as [node], node.client() as client:
        client.set("k", "v")
        run_id = node.run_id
        node.kill()
        assert not node.is_running
        node.start()
        assert client.get("k") == b"v"
        assert node.run_id != run_id
        node.restart()
        assert client.get("k") is None


def test_other_commands_and_scripts_are_refused() -> None:
    with MemoryServer() as node, node.client() as client:
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.execute_command("ZADD", "k", 1, "m")
        with pytest.raises(redis.ResponseError, match="own scripts only"):
            client.script_load("return 1")
        with pytest.raises(redis.ResponseError, match="one setting"):
            client.config_set("save", "")


def test_nodes_that_started_are_stopped_if_another_can_not() -> None:
    with MemoryServer() as taken:
        first, second = MemoryServer(), MemoryServer()
        second.port = taken.port
        with pytest.raises(OSError, match="in use"), MemoryServers([first, second]):
            pass
    assert not first.is_running
