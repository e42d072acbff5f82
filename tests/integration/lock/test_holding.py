"""Holding a lock for the length of a block, and what others see of it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from celery_redlock.redlock import LockHeld, QuorumUnavailable, Redlock
from celery_redlock.redlock.events import Acquired, Event, Refused, Released
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    ms_left_on,
)
from tests.support.root import ROOT


def test_a_lock_is_held_inside_the_block_and_free_after_it(
    redlock: Redlock, rival: Redlock
) -> None:
    with redlock.lock("k") as lease:
        lease.ensure()
        assert redlock.keeper.kept() == [lease]
        with pytest.raises(LockHeld):
            rival.acquire("k")
    assert redlock.keeper.kept() == []
    rival.acquire("k")


def test_a_block_that_raises_releases_and_passes_the_error_on(
    redlock: Redlock, rival: Redlock
) -> None:
    with pytest.raises(ZeroDivisionError), redlock.lock("k"):
        _ = 1 / 0
    rival.acquire("k")


def test_a_block_is_not_entered_without_the_lock(redlock: Redlock, rival: Redlock) -> None:
    redlock.acquire("k")
    with pytest.raises(LockHeld), rival.lock("k"):
        pytest.fail("entered")


def test_a_finished_block_is_not_failed_by_its_release(
    five: Servers, new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture
) -> None:
    redlock = new_redlock(five.urls)
    with redlock.lock("k"):
        for server in five[:3]:
            server.kill()
    [record] = [one for one in caplog.records if one.name.endswith(".lease")]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "lock not released key=k error=cannot release 'k': 2 of 5 nodes answered, 3 are needed"
    )


def test_max_hold_is_counted_from_the_acquisition(redlock: Redlock) -> None:
    with redlock.lock("k", max_hold=100) as lease:
        assert lease.hold_until == lease.acquired_at + 100


def test_a_kept_lease_is_renewed(redlock: Redlock) -> None:
    with redlock.lock("k", ttl=3) as lease:
        first = lease.deadline
        eventually(lambda: lease.deadline > first)
        second = lease.deadline
        eventually(lambda: lease.deadline > second)
        assert not lease.lost


def test_twenty_threads_hold_it_one_at_a_time(redlock: Redlock) -> None:
    inside: list[int] = []
    tokens: list[int] = []
    overlaps: list[int] = []

    def work(number: int) -> None:
        for _ in range(3):
            with redlock.lock("k", wait=100) as lease:
                inside.append(number)
                tokens.append(lease.token)
                lease.ensure()
                if inside != [number]:
                    overlaps.append(number)
                inside.remove(number)

    threads = [threading.Thread(target=work, args=[number]) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert len(tokens) == 60
    assert tokens == sorted(set(tokens))


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


def test_observers_are_told_what_happens(five: Servers, new_redlock: NewRedlock) -> None:
    seen: list[Event] = []
    redlock = new_redlock(five.urls, observers=[seen.append])
    lease = redlock.acquire("k")
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")
    redlock.release(lease)
    acquired, refused, released = (
        event for event in seen if isinstance(event, Acquired | Refused | Released)
    )
    assert isinstance(acquired, Acquired)
    assert (acquired.lease, acquired.rounds) == (lease, 1)
    assert refused == Refused("k", caught.value)
    assert isinstance(released, Released)
    assert released.lease is lease
    assert released.held >= 0


def test_an_observer_that_raises_breaks_nothing(
    five: Servers, new_redlock: NewRedlock, rival: Redlock
) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    redlock = new_redlock(five.urls, observers=[broken])
    with redlock.lock("k") as lease:
        lease.ensure()
        with pytest.raises(LockHeld):
            redlock.acquire("k")
    rival.acquire("k")


def test_check_finds_nothing_wrong_with_nodes_that_are_well(redlock: Redlock) -> None:
    assert redlock.check() == {}


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


def test_a_lease_that_took_longer_than_its_ttl_is_none(
    five: Servers, new_redlock: NewRedlock
) -> None:
    class SlowClock(LeapingClock):
        def now(self) -> float:
            if threading.current_thread() is threading.main_thread():
                self.leap(20.0)  # a process that is put to sleep again and again
            return super().now()

    redlock = new_redlock(five.urls, node_timeout=1000, clock=SlowClock())
    with pytest.raises(QuorumUnavailable, match="too late"):
        redlock.acquire("k", ttl=30)
    assert_freed(five, "k")
