"""Exceptions that strike at any point of a call, on real nodes."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest

from celery_redlock.redlock import QuorumUnavailable, Redlock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.faults.strikes import Struck, strikes
from tests.support.root import ROOT


@pytest.fixture
def three(five: Servers) -> Servers:
    return Servers(five[:3])


@pytest.fixture
def redlock(three: Servers, new_redlock: NewRedlock) -> Redlock:
    return new_redlock(three.urls, node_timeout=2.0)


def locks_on(servers: Servers) -> set[str]:
    """The lock keys on any node; floors may stay."""
    names: set[str] = set()
    for server in servers:
        with server.client() as client:
            names |= {name.decode() for name in client.scan_iter("*}", count=1000)}
    return names


def assert_free(servers: Servers) -> None:
    # The ttl is 60 s.
    eventually(lambda: not locks_on(servers), "no lock is left", within=30)


@pytest.mark.long
@pytest.mark.timeout(900)  # thousands of strikes, each with rounds of its own
def test_an_interrupt_at_any_bytecode_of_a_block_frees_its_lock(
    three: Servers, redlock: Redlock
) -> None:
    def hold(_: int) -> None:
        # Had again within seconds, whatever the one before has left.
        with redlock.lock("k", ttl=60, wait=20):
            pass

    struck = 0
    for _, raised, where in strikes(hold, opcodes=True):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        struck += 1
    assert struck > 1000
    assert_free(three)
    assert redlock.keeper.kept() == []


@pytest.mark.long
def test_no_struck_line_of_a_release_leaves_a_lock(three: Servers, redlock: Redlock) -> None:
    leases = {1: redlock.acquire("k1", ttl=60)}
    for at, raised, where in strikes(lambda at: redlock.release(leases[at])):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        if not leases[at].is_released:  # it had not begun
            redlock.release(leases[at])
        leases[at + 1] = redlock.acquire(f"k{at + 1}", ttl=60)
    assert_free(three)


@pytest.mark.long
def test_an_interrupt_at_any_line_of_acquire_leaves_no_renewals(
    three: Servers, redlock: Redlock
) -> None:
    for _, raised, where in strikes(lambda at: redlock.acquire(f"k{at}", ttl=5)):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
    assert redlock.keeper.kept() == []
    assert_free(three)


@pytest.mark.long
def test_a_struck_line_with_a_node_that_hangs_leaves_no_lock(
    three: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(three.urls, node_timeout=0.1)

    def hold(at: int) -> None:
        while True:
            # On a busy machine one of the other nodes may take longer than its timeout.
            with suppress(QuorumUnavailable), redlock.lock(f"k{at}", ttl=60):
                return

    hold(0)
    three[1].pause()
    for _, raised, where in strikes(hold, step=3):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
    three[1].resume()
    assert_free(three)


@pytest.mark.parametrize(
    ("how", "count"),
    [
        ("signals", 1500),
        pytest.param("threads", 800, marks=pytest.mark.long),
        pytest.param("greenlets", 500, marks=pytest.mark.long),
    ],
)
def test_interrupts_at_random_moments_leave_no_lock(three: Servers, how: str, count: int) -> None:
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.support.processes.interrupting",
        how,
        str(count),
    ]
    with subprocess.Popen(
        [*command, *three.urls], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        struck, whole = map(int, process.stdout.readline().split())
        assert struck > count / 10, f"{struck} were struck, {whole} were not"
        assert_free(three)
        process.stdin.close()
        assert process.stdout.readline() == "0\n", "nothing is kept"


EXITING = """
import os, signal, sys
from celery_redlock import Acquired, Redlock

def exit_on_signal(event):
    if isinstance(event, Acquired):
        os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
redlock = Redlock(
    sys.argv[1:], node_timeout=2.0, restart_guard=False, observers=[exit_on_signal]
)
with redlock.lock("k", ttl=60):
    pass
"""


def test_a_process_that_exits_as_it_enters_leaves_no_lock(three: Servers) -> None:
    """Its end waits for the keeper, a daemon thread."""
    ran = subprocess.run([sys.executable, "-c", EXITING, *three.urls], cwd=ROOT, check=False)
    assert ran.returncode == 3
    assert not locks_on(three)
