"""Programs that fork while they use the lock. Run by the tests in a process without other threads.

    python -m tests.support.processes.forking SCENARIO URL...

Each ends with status 0 if everything was as it should be.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable

import psutil
import pytest

from celery_redlock.redlock import LockHeld, Redlock
from tests.support.eventually import eventually
from tests.support.faults.strikes import Striker
from tests.support.processes.forks import fork


def new_redlock(urls: list[str]) -> Redlock:
    """Return a patient one."""
    return Redlock(urls, restart_guard=False, node_timeout=20.0, idle_timeout=600.0)


def ports_of(process: psutil.Process, servers: list[str]) -> set[tuple[int, int]]:
    """Return the two ports of each of a process's connections to the servers.

    Here alone does not tell them apart: one port serves connections to several servers.
    """
    remote = {int(url.rpartition(":")[2]) for url in servers}
    return {
        (connection.laddr.port, connection.raddr.port)
        for connection in process.net_connections("tcp")
        if len(connection.raddr) and connection.raddr.port in remote
    }


def assert_ends_well(pid: int) -> None:
    """Wait for a child."""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"


def use(redlock: Redlock, key: str, times: int) -> None:
    """Lock and unlock again and again; tokens must grow and nobody else's replies be read."""
    last = 0
    for _ in range(times):
        with redlock.lock(key, wait=60) as lease:
            assert lease.token > last
            last = lease.token
            lease.ensure()


def in_threads(count: int, work: Callable[[int], object]) -> list[threading.Thread]:
    """Start threads."""
    threads = [threading.Thread(target=work, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def held(urls: list[str]) -> None:
    """A child locks on its own, while the parent's lease stays the parent's and is renewed."""
    redlock = new_redlock(urls)
    for thread in in_threads(5, lambda number: use(redlock, f"warm-{number}", 5)):
        thread.join()
    with redlock.lock("k", ttl=6) as lease:
        parents = ports_of(psutil.Process(), urls)

        def child() -> None:
            assert redlock.keeper.kept() == []
            assert not parents & ports_of(psutil.Process(), urls), "copies are closed"
            with pytest.raises(LockHeld) as caught:
                redlock.acquire("k")
            assert caught.value.owner == lease.owner
            use(redlock, "child", 200)
            use(redlock, "both", 50)
            assert not parents & ports_of(psutil.Process(), urls)
            with redlock.lock("kept by the child", ttl=6) as own:
                first = own.deadline
                eventually(lambda: own.deadline > first)

        deadline = lease.deadline
        pid = fork(child)
        use(redlock, "parent", 200)
        use(redlock, "both", 50)
        assert_ends_well(pid)
        assert parents <= ports_of(psutil.Process(), urls), "the parent's connections stand"
        eventually(lambda: lease.deadline > deadline)
        lease.ensure()


def hammered(urls: list[str]) -> None:
    """Children that are forked while other threads are in the middle of everything can lock."""
    redlock = new_redlock(urls)
    is_over = threading.Event()

    def hammer(number: int) -> None:
        while not is_over.is_set():
            use(redlock, f"thread-{number}", 1)

    threads = in_threads(5, hammer)
    try:
        for number in range(10):
            pid = fork(lambda number=number: use(redlock, f"child-{number}", 10))  # type: ignore[misc]
            use(redlock, "parent", 5)
            assert_ends_well(pid)
    finally:
        is_over.set()
    for thread in threads:
        thread.join()


def importing(urls: list[str]) -> None:
    """Nothing is imported on the way to a lock: a child forked meanwhile could never finish it."""
    before = set(sys.modules)
    redlock = new_redlock(urls)
    use(redlock, "k", 2)
    with redlock.lock("k"), pytest.raises(LockHeld):
        redlock.acquire("k")
    assert set(sys.modules) == before


def generations(urls: list[str]) -> None:
    """A child's child locks on its own, too."""
    redlock = new_redlock(urls)

    def child() -> None:
        with redlock.lock("child") as lease:
            assert_ends_well(fork(lambda: use(redlock, "grandchild", 20)))
            lease.ensure()

    with redlock.lock("parent") as lease:
        assert_ends_well(fork(child))
        lease.ensure()


def anywhere(urls: list[str]) -> None:
    """A child that is forked at any line of a block locks on its own, and leaves the parent's."""
    redlock = new_redlock(urls)

    def child() -> None:
        assert redlock.keeper.kept() == []
        with redlock.lock("child", wait=60):
            pass

    pids: list[int] = []
    for at in itertools.count(1, 7):  # a fork takes its time
        striker = Striker(at, strike=lambda: pids.append(fork(child)))
        with striker, redlock.lock("parent", wait=60) as lease:
            lease.ensure()
        if not striker.where:
            return
        assert_ends_well(pids.pop())


def left(urls: list[str]) -> None:
    """A child that leaves the block in which it was forked does not release the parent's lock."""
    redlock = new_redlock(urls)
    with redlock.lock("k") as lease:
        pid = os.fork()
        if not pid:
            sys.exit()
        assert_ends_well(pid)
        lease.ensure()


def reused(urls: list[str]) -> None:
    """Children share a block's `Hold` with their parent, refused, nested and left, at any line."""
    redlock = new_redlock(urls)
    hold, other = redlock.lock("k"), redlock.lock("k", wait=60)

    def refused() -> None:
        with pytest.raises(LockHeld), hold:
            pytest.fail("entered")

    with hold as lease:
        pid = os.fork()
        if not pid:
            refused()
            sys.exit()  # and leaves the block
        assert_ends_well(pid)
        refused()
        lease.ensure()
        pid = os.fork()
        if not pid:
            with other as own:
                assert own.token > lease.token
            assert not redlock.keeper.kept()
            sys.exit()
    assert_ends_well(pid)
    with hold:
        pass


def pooled(urls: list[str]) -> None:
    """The standard library's own children work as well."""
    redlock = new_redlock(urls)
    with redlock.lock("parent") as lease:
        context = multiprocessing.get_context("fork")
        children = [
            context.Process(target=use, args=(redlock, f"child-{number % 2}", 10))
            for number in range(4)
        ]
        for child in children:
            child.start()
        use(redlock, "child-0", 10)
        for child in children:
            child.join()
            assert child.exitcode == 0
        lease.ensure()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (held, hammered, importing, generations, anywhere, left, reused, pooled)
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2:])
