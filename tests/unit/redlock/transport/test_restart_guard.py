"""When a server may vote that may have forgotten its grants."""

from __future__ import annotations

import itertools

import pytest

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.transport.handshake import Server
from celery_redlock.redlock.transport.restart_guard import RestartGuard
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
