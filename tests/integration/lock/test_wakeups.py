"""Waiters that are woken by a release, on real servers, and what they do where they can't be.

Where a wakeup is claimed, polling would take half a minute.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from celery_redlock.redlock import Lease, LockHeld, waiting
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock, ProxyFor, StartServers
from tests.support.eventually import PATIENCE, eventually

LOCK = "redlock:{k}"


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hears of releases does not ask without one."""
    monkeypatch.setattr(waiting, "POLL_S", 3600.0)


def is_listening(redlock: TaskLock, key: str = "k") -> bool:
    line = redlock._waiters.queues.get(f"redlock:{{{key}}}")
    return line is not None and line.is_heard and bool(line.waiters)


def waiting_in(redlock: TaskLock) -> int:
    return len(redlock._waiters.queues[LOCK].waiters)


def listens(server: Server, count: int = 1) -> bool:
    with server.client() as client:
        return bool(client.pubsub_numsub(LOCK)[0][1] >= count)


class Waiting:
    """A thread that waits for the lock."""

    def __init__(self, redlock: TaskLock, wait: float = 3600.0) -> None:
        self._outcome: queue.SimpleQueue[Lease | BaseException] = queue.SimpleQueue()
        self._redlock, self._wait = redlock, wait
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._outcome.put(self._redlock.acquire("k", ttl=60.0, wait=self._wait))
        except BaseException as error:  # noqa: BLE001
            self._outcome.put(error)

    def lease(self) -> Lease:
        """Return what it got."""
        outcome = self._outcome.get(timeout=PATIENCE)
        assert isinstance(outcome, Lease), outcome
        return outcome


def asleep(redlock: TaskLock) -> Waiting:
    """Return a waiter that hears of releases, and has asked since it does."""
    waiting = Waiting(redlock)
    eventually(lambda: is_listening(redlock))
    time.sleep(0.3)
    return waiting


@pytest.mark.usefixtures("seldom")
def test_a_release_wakes_who_waits(redlock: TaskLock, rival: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=60.0)
    waiting = asleep(rival)
    redlock.release(lease)
    assert waiting.lease().token > lease.token


@pytest.mark.usefixtures("seldom")
def test_waiters_of_a_process_get_their_turns_in_order(redlock: TaskLock, rival: TaskLock) -> None:
    lease, line = redlock.acquire("k", ttl=60.0), []
    for number in range(5):
        line.append(asleep(rival))
        eventually(lambda count=number + 1: waiting_in(rival) == count)  # type: ignore[misc]
    for waiter in line:
        redlock.release(lease)
        lease = waiter.lease()


@pytest.mark.usefixtures("seldom")
def test_who_waits_is_woken_over_a_new_connection(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=60.0)
    waiting = asleep(rival)
    for server in five:
        with server.client() as client:
            client.client_kill_filter(_type="pubsub")
    for server in five:
        eventually(lambda server=server: listens(server))  # type: ignore[misc]
    redlock.release(lease)
    waiting.lease()


@pytest.mark.usefixtures("seldom")
def test_a_minority_that_is_silent_holds_up_no_wakeup(
    servers: StartServers, new_redlock: NewRedlock
) -> None:
    own_five = servers(5)
    redlock, rival = new_redlock(own_five.urls), new_redlock(own_five.urls)
    lease = redlock.acquire("k", ttl=60.0)
    waiting = asleep(rival)
    own_five[0].pause()
    own_five[1].kill()
    try:
        redlock.release(lease)
        waiting.lease()
    finally:
        own_five[0].resume()


@pytest.mark.usefixtures("seldom")
def test_a_half_open_connection_is_replaced(
    five: Servers, redlock: TaskLock, new_redlock: NewRedlock, proxy_for: ProxyFor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("celery_redlock.redlock.transport.subscriptions._CHECK_S", 0.2)
    proxies = [proxy_for(server) for server in five]
    rival = new_redlock([proxy.url for proxy in proxies])
    lease = redlock.acquire("k", ttl=60.0)
    waiting = asleep(rival)
    for proxy in proxies:
        proxy.half_open()
    time.sleep(1.0)
    for proxy in proxies:
        proxy.heal()
    for server in five:
        eventually(lambda server=server: listens(server))  # type: ignore[misc]
    eventually(lambda: is_listening(rival))
    redlock.release(lease)
    waiting.lease()


@pytest.mark.parametrize("rights", ["resetchannels", "-subscribe", "-publish", "-pubsub"])
@pytest.mark.parametrize("refusing", [1, 5])
def test_who_may_not_be_woken_polls(
    servers: StartServers, new_redlock: NewRedlock, rights: str, refusing: int
) -> None:
    own_five = servers(5)
    urls = []
    for number, server in enumerate(own_five):
        with server.client() as client:
            forbidden = (rights,) if number < refusing else ("allchannels",)
            user = ("ACL", "SETUSER", "u", "on", ">pw", "~*", "allchannels", "+@all", *forbidden)
            client.execute_command(*user)
        urls.append(server.url.replace("redis://", "redis://u:pw@"))
    redlock, rival = new_redlock(urls), new_redlock(urls)
    lease = redlock.acquire("k", ttl=60.0)
    waiting = Waiting(rival)
    time.sleep(0.3)
    redlock.release(lease)
    waiting.lease()


def test_a_wait_ends_in_time_among_older_waiters(redlock: TaskLock, rival: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=60.0)
    waiting = asleep(rival)
    with pytest.raises(LockHeld):
        rival.acquire("k", wait=0.5)
    redlock.release(lease)
    waiting.lease()


def test_what_a_wait_calls_ends_it(redlock: TaskLock, rival: TaskLock) -> None:
    redlock.acquire("k", ttl=60.0)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        rival.acquire_for_task("k", ttl=60.0, wait=3600.0, on_wait=stop)


@contextmanager
def signalled(redlock: TaskLock) -> Iterator[None]:
    """Strike this thread once its wait is one that a release would end."""

    def strike(*_: object) -> None:
        raise InterruptedError

    def send() -> None:
        eventually(lambda: is_listening(redlock))
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, strike)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("seldom")
def test_a_signal_ends_a_wait_and_the_next_waiter_is_woken(
    redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=60.0)
    with signalled(rival), suppress(InterruptedError):
        rival.acquire("k", ttl=60.0, wait=3600.0)
    waiting = asleep(rival)
    redlock.release(lease)
    waiting.lease()


GREEN = """
import sys
{patch}
import threading, time
from celery_redlock.redlock import waiting
from celery_redlock.redlock.task_lock import TaskLock
waiting.POLL_S = 3600.0
urls = sys.argv[1:]
redlock, rival = (TaskLock(urls, restart_guard=False, node_timeout=20.0) for _ in range(2))
for _ in range(3):
    lease = redlock.acquire("k", ttl=60.0)
    threads = [
        threading.Thread(target=lambda: rival.release(rival.acquire("k", ttl=60.0, wait=100.0)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    queues = lambda: rival._waiters.queues.values()
    while not any(line.is_heard and len(line.waiters) == 3 for line in queues()):
        time.sleep(0.01)
    time.sleep(0.3)
    redlock.release(lease)
    for thread in threads:
        thread.join()
print("done")
"""
PATCHES = {
    "threads": "",
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}


@pytest.mark.parametrize("pool", PATCHES)
def test_greenlets_are_woken_as_threads_are(five: Servers, pool: str) -> None:
    assert_done(GREEN.format(patch=PATCHES[pool]), five)


FORK = """
import os, sys, threading, time
from celery_redlock.redlock import waiting
from celery_redlock.redlock.task_lock import TaskLock
waiting.POLL_S = 3600.0
urls = sys.argv[1:]
redlock, rival = (TaskLock(urls, restart_guard=False, node_timeout=20.0) for _ in range(2))
lease = redlock.acquire("k", ttl=60.0)

def wait():
    rival.release(rival.acquire("k", ttl=60.0, wait=100.0))

def listeners():
    return sum(line.is_heard and len(line.waiters) for line in rival._waiters.queues.values())

thread = threading.Thread(target=wait)
thread.start()
while not listeners():
    time.sleep(0.01)
told, tell = os.pipe()
child = os.fork()
if not child:
    thread = threading.Thread(target=wait)
    thread.start()
    while not listeners():
        time.sleep(0.01)
    os.write(tell, b"!")
    thread.join()
    os._exit(0)
os.read(told, 1)
time.sleep(0.3)
redlock.release(lease)
thread.join()
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_a_child_waits_with_a_listener_of_its_own(five: Servers) -> None:
    assert_done(FORK, five)


def assert_done(script: str, five: Servers) -> None:
    command = [sys.executable, "-W", "ignore", "-c", script, *five.urls]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    assert ended.stdout.strip() == "done", ended.stderr
