"""How many connections a process has: few for many threads, and none when it has been idle."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from celery_redlock.redlock import LockHeld, QuorumUnavailable
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock, StartServers
from tests.support.eventually import eventually
from tests.support.root import ROOT


def connections(server: Server) -> int:
    """Return how many clients a server has, apart from the one that asks."""
    with server.client() as client:
        return len(client.client_list()) - 1


@pytest.fixture
def three(servers: StartServers) -> Servers:
    return servers(3)


def test_idle_connections_are_closed_and_made_again(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls, idle_timeout=0.2)
    for _ in range(2):
        redlock.release(redlock.acquire("k"))
        eventually(lambda: [connections(server) for server in three] == [0, 0, 0])


def test_the_connections_of_the_keeper_are_closed_too(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls, idle_timeout=0.2)
    with redlock.lock("k", ttl=6) as lease:
        deadline = lease.deadline
        eventually(lambda: lease.deadline > deadline)
    eventually(lambda: [connections(server) for server in three] == [0, 0, 0])


def test_a_lease_outlives_the_connections_of_its_acquisition(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls, idle_timeout=0.2)
    lease = redlock.acquire("k", ttl=60)
    eventually(lambda: [connections(server) for server in three] == [0, 0, 0])
    lease.ensure()
    with pytest.raises(LockHeld):
        redlock.acquire("k")
    redlock.release(lease)
    redlock.release(redlock.acquire("k"))


def test_many_threads_share_a_few_connections(three: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(three.urls, max_connections=4)
    start, most, failures = threading.Barrier(101), [0], []

    def use(number: int) -> None:
        start.wait()
        try:
            for _ in range(3):
                with redlock.lock(f"k-{number}", ttl=60):
                    pass
        except Exception as error:  # noqa: BLE001 - it is shown
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(100)]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        most.append(max(connections(server) for server in three))
        time.sleep(0.01)
    assert failures == []
    assert max(most) <= 4 + 1, "one more is the keeper's"


@pytest.mark.long
def test_a_thread_gets_no_quorum_if_every_connection_is_in_use(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls, max_connections=1)
    with redlock._pool.channel():
        with pytest.raises(QuorumUnavailable, match="all 1 connections of this process are in use"):
            redlock.acquire("k")
        assert redlock.check().keys() == {node.name for node in redlock.nodes}
    redlock.release(redlock.acquire("k"))


GREEN = """
import sys
if sys.argv[1] == "gevent":
    from gevent import monkey; monkey.patch_all()
    from gevent import joinall, spawn
else:
    import eventlet; eventlet.monkey_patch()
    def joinall(threads):
        for thread in threads:
            thread.wait()
    spawn = eventlet.spawn
import time
from celery_redlock.redlock import Redlock
redlock = Redlock(sys.argv[2:], restart_guard=False, node_timeout=10, max_connections=2,
                  idle_timeout=0.2)
done = []
def use(number):
    for _ in range(5):
        with redlock.lock(f"k-{number}", ttl=60):
            time.sleep(0.001)
    done.append(number)
joinall([spawn(use, number) for number in range(30)])
assert len(done) == 30, done
assert len(redlock._pool._made) <= 2
deadline = time.monotonic() + 60
while redlock._pool.has_channels():
    assert time.monotonic() < deadline, "idle connections are not closed"
    time.sleep(0.05)
redlock.release(redlock.acquire("k"))
redlock.close()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
def test_greenlets_share_a_few_connections(three: Servers, kind: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", GREEN, kind, *three.urls]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
