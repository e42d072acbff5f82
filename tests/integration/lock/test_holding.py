"""Holding a lock for the length of a block, and what others see of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Servers
from tests.support.judges.nodes import (
    ms_left_on,
)
from tests.support.root import ROOT


def test_the_lock_of_a_process_that_dies_is_had_after_its_ttl(
    five: Servers, redlock: Redlock
) -> None:
    program = (
        "import sys, time; from celery_redlock.redlock import Redlock\n"
        "redlock = Redlock(sys.argv[1:], restart_guard=False, node_timeout=20)\n"
        "with redlock.lock('k', ttl=4) as lease: print(lease.token, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, *five.urls], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        token = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
    assert max(ms_left_on(server, "k") for server in five) <= 4000
    assert redlock.acquire("k", wait=60).token > token
    # A token is the date of its grant, in µs.
    assert redlock.clock.wall_us() > token + 3_900_000


# ---- what is seen of it


def test_a_closed_lock_renews_nothing_and_may_be_used_again(redlock: Redlock) -> None:
    lease = redlock.acquire("k")
    redlock.keeper.keep(lease)
    redlock.close()
    assert redlock.keeper.kept() == []
    redlock.extend(lease)
    redlock.release(lease)


def test_the_lock_shows_its_nodes(five: Servers, redlock: Redlock) -> None:
    assert repr(redlock) == (
        f"Redlock({[f'127.0.0.1:{server.port}' for server in five]!r}, key_prefix='redlock')"
    )
