"""When a server may vote that may have forgotten its grants."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.transport.handshake import Server
from celery_redlock.redlock.transport.restart_guard import RestartGuard, Sighting
from tests.support.fakes.fake_clock import FakeClock

GUARD = 63.6
LONG = "1000000"
_addresses = (f"never-used-{number}:6379" for number in itertools.count())


@pytest.fixture
def guard() -> RestartGuard:
    return RestartGuard("node:6379", FakeClock(), GUARD)


def server(
    run_id: str = "first",
    uptime: str = LONG,
    at: float = 1000.0,
    admitted: str = "",
) -> Server:
    return Server(run_id, uptime, at, admitted)


@pytest.fixture
def parent() -> RestartGuard:
    """The guard of a process that has seen the first server."""
    parent = RestartGuard(next(_addresses), SystemClock(), GUARD)
    parent.votes_from(server())
    return parent


def forked(parent: RestartGuard) -> RestartGuard:
    """Return the guard as a process has it that is forked now."""
    child = RestartGuard(next(_addresses), SystemClock(), GUARD)
    sighting = copy.copy(sighting_of(parent))
    sighting._writer = 0
    child._identity = replace(parent._identity, sighting=sighting)
    return child


def sighting_of(guard: RestartGuard) -> Sighting:
    sighting = guard._identity.sighting
    assert sighting
    return sighting


def test_the_guard_is_counted_from_the_server_s_start(guard: RestartGuard) -> None:
    assert guard.votes_from(server(uptime="20")) == pytest.approx(1000 - 20 + GUARD)


def test_a_server_that_is_up_for_as_long_as_the_guard_votes(guard: RestartGuard) -> None:
    assert guard.votes_from(server(uptime="64")) <= 1000


def test_a_server_started_before_its_clock_was_set_back_waits(guard: RestartGuard) -> None:
    assert guard.votes_from(server(uptime="-500")) == 1000 + GUARD


def test_another_run_id_waits_the_guard_whatever_its_uptime(guard: RestartGuard) -> None:
    assert guard.votes_from(server()) <= 1000
    assert guard.votes_from(server("replica", at=2000.0)) == 2000 + GUARD


def test_a_later_connection_does_not_begin_the_guard_again(guard: RestartGuard) -> None:
    guard.votes_from(server())
    guard.votes_from(server("replica", at=2000.0))
    assert guard.votes_from(server("replica", at=2020.0)) == 2000 + GUARD


def test_a_server_that_comes_back_counts_as_another(guard: RestartGuard) -> None:
    guard.votes_from(server())
    guard.votes_from(server("replica", at=2000.0))
    assert guard.votes_from(server(at=3000.0)) == 3000 + GUARD


def test_without_a_guard_every_server_votes_at_once() -> None:
    guard = RestartGuard("node:6379", FakeClock(), 0.0)
    assert guard.votes_from(server(uptime="0")) == 1000
    assert guard.votes_from(server("replica", at=2000.0)) == 2000


def test_a_server_that_was_declared_new_waits_for_the_clocks_only() -> None:
    guard = RestartGuard("node:6379", FakeClock(), GUARD, 5.0)
    admitted = server(uptime="2", admitted="first")
    assert guard.votes_from(admitted) == 1000 - 2 + 5


def test_a_server_that_was_declared_new_votes_at_once_by_default() -> None:
    guard = RestartGuard("node:6379", FakeClock(), GUARD)
    assert guard.votes_from(server(uptime="2", admitted="first")) == 1000 - 2


def test_a_server_that_was_a_replica_meanwhile_waits_anew(guard: RestartGuard) -> None:
    master = server()._replace(history="a")
    assert guard.votes_from(master) < 1000.0
    assert guard.votes_from(master._replace(answered_at=1500.0)) < 1000.0
    promoted = master._replace(history="b", answered_at=2000.0)
    assert guard.votes_from(promoted) == 2000.0 + GUARD
    assert guard.votes_from(promoted._replace(answered_at=2030.0)) == 2000.0 + GUARD


@pytest.mark.parametrize("uptime", ["1", LONG])
def test_an_admitted_server_that_replaced_another_waits(uptime: str) -> None:
    """The other one may have granted leases after the admission, or before it."""
    guard = RestartGuard("node:6379", FakeClock(), GUARD, 5.0)
    guard.votes_from(server())
    replaced = server("second", uptime, 2000.0, "second")
    assert guard.votes_from(replaced) == 2000 + GUARD


def test_the_admission_of_another_run_is_not_valid(guard: RestartGuard) -> None:
    later = server("second", "1", admitted="first")
    assert guard.votes_from(later) == 1000 - 1 + GUARD


def test_a_server_seen_by_one_lock_is_known_to_the_others() -> None:
    address, clock = next(_addresses), SystemClock()
    one, other = (RestartGuard(address, clock, GUARD) for _ in range(2))
    one.votes_from(server(at=1000.0))
    assert other.votes_from(server("replica", at=2000.0)) == 2000 + GUARD
    assert one.votes_from(server("replica", at=2020.0)) == 2000 + GUARD


def test_servers_at_different_addresses_replace_no_other() -> None:
    one, other = (RestartGuard(next(_addresses), SystemClock(), GUARD) for _ in range(2))
    one.votes_from(server(at=1000.0))
    assert other.votes_from(server("another", at=1000.0)) <= 1000


def test_a_server_asked_again_does_not_wait_for_longer(guard: RestartGuard) -> None:
    guard.votes_from(server(uptime="20", at=1000.0))
    # Its clock was set back, or the reply was long on its way.
    assert guard.votes_from(server(uptime="5", at=1010.0)) == 1000 - 20 + GUARD


# ---- what a forked process learns from its parent


def test_an_idle_process_counts_from_when_its_parent_saw_the_server(parent: RestartGuard) -> None:
    child = forked(parent)
    parent.votes_from(server("second", at=2000.0))
    parent.votes_from(server("second", at=2500.0))
    assert child.votes_from(server("second", at=3000.0)) == 2000 + GUARD
    assert child.votes_from(server("second", at=3100.0)) == 2000 + GUARD


def test_a_process_learns_when_its_parent_saw_its_first_server() -> None:
    """It is the child's second one: from when on it is there counts, not what the parent missed."""
    parent = RestartGuard(next(_addresses), SystemClock(), GUARD)
    child = forked(parent)
    child.votes_from(server(at=1500.0))
    assert parent.votes_from(server("second", at=2000.0)) <= 2000
    assert child.votes_from(server("second", at=3000.0)) == 2000 + GUARD


@pytest.mark.parametrize("last_seen", ["first", "third"])
def test_a_parent_that_sees_another_server_is_no_guide(
    parent: RestartGuard, last_seen: str
) -> None:
    child = forked(parent)
    parent.votes_from(server(last_seen, at=2000.0))
    assert child.votes_from(server("second", at=3000.0)) == 3000 + GUARD


def test_a_process_that_saw_the_server_first_counts_from_then(parent: RestartGuard) -> None:
    child = forked(parent)
    parent.votes_from(server("second", at=2000.0))
    assert child.votes_from(server("second", at=1990.0)) == 1990 + GUARD


def test_a_process_that_saw_the_earlier_server_later_counts_for_itself(
    parent: RestartGuard,
) -> None:
    child = forked(parent)
    parent.votes_from(server("second", at=2000.0))
    child.votes_from(server(at=2000.0))
    assert child.votes_from(server("second", at=3000.0)) == 3000 + GUARD


def test_what_a_forked_process_sees_is_its_own(parent: RestartGuard) -> None:
    child, sibling = forked(parent), forked(parent)
    assert child.votes_from(server("second", at=2000.0)) == 2000 + GUARD
    assert sibling.votes_from(server("second", at=3000.0)) == 3000 + GUARD


@pytest.mark.parametrize("byte", [0, 32, 40])
def test_a_record_that_is_half_written_is_none(parent: RestartGuard, byte: int) -> None:
    child, sighting = forked(parent), sighting_of(parent)
    parent.votes_from(server("second", at=2000.0))
    sighting._memory[byte] ^= 1
    assert sighting.since("second") is None
    assert child.votes_from(server("second", at=3000.0)) == 3000 + GUARD


def test_a_sighting_is_of_a_run_id_of_any_length() -> None:
    sighting, run_id = Sighting(), "x" * 100_000
    assert sighting.since("") is None
    sighting.write(run_id, 2000.0)
    assert sighting.since(run_id) == 2000.0
    assert sighting.since(run_id[:-1]) is None


def test_an_injected_clock_s_times_are_not_shared(guard: RestartGuard) -> None:
    assert guard._identity.sighting is None


# In a process of its own: this one has other threads.
FORKING = """
import os
from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.transport.handshake import Server
from celery_redlock.redlock.transport.restart_guard import RestartGuard
guard = RestartGuard("node:6379", SystemClock(), 60.0)
guard.votes_from(Server("first", "1000000", 1000.0))
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.read(reading, 1)
    learned = guard.votes_from(Server("second", "1000000", 3000.0))
    guard.votes_from(Server("third", "1000000", 3100.0))
    os._exit(learned != 2060.0)
guard.votes_from(Server("second", "1000000", 2000.0))
os.write(writing, b"1")
assert os.waitpid(child, 0)[1] == 0
assert guard._identity.sighting.since("second") == 2000.0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a prefork pool forks")
def test_a_forked_process_reads_its_parent_and_writes_nothing() -> None:
    subprocess.run([sys.executable, "-c", FORKING], check=True)
