"""A lock delay: how long nobody gets a lock whose holder did not release it, on simulated nodes."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import LockHeld, keeper
from celery_redlock.redlock.errors import ConfigurationError, LeaseLost
from celery_redlock.redlock.keeper import gone_at
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import drift_ms, validity_ms
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.simulated_network import Network

TTL, DELAY = 20.0, 10.0
VALIDITY = validity_ms(TTL * 1000, 0) / 1000


@pytest.fixture
def lease(five: Network, redlock: TaskLock) -> Lease:
    return redlock.acquire("k", TTL, lock_delay=DELAY)


def left_ms(five: Network) -> set[int]:
    return {node.left_ms() for node in five.nodes}


def test_a_grant_lasts_longer_than_its_lease_by_the_lock_delay(five: Network, lease: Lease) -> None:
    assert left_ms(five) == {30_000}
    assert lease.deadline == pytest.approx(five.time + VALIDITY)
    assert gone_at(lease) == pytest.approx(lease.deadline + DELAY + drift_ms(30_000) / 1000)


def test_nobody_gets_a_lock_within_the_delay_after_a_lost_lease(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(VALIDITY + 0.1)
    assert lease.lost
    with pytest.raises(LockHeld) as held:
        redlock.acquire("k", TTL)
    assert held.value.remaining == pytest.approx(TTL + DELAY - VALIDITY - 0.1, abs=0.01)
    five.pass_(lease.deadline + DELAY - five.time - 0.01)
    with pytest.raises(LockHeld):
        redlock.acquire("k", TTL)
    five.pass_(gone_at(lease) - five.time + 0.01)
    assert redlock.acquire("k", TTL).token > lease.token


def test_a_lost_lease_is_not_renewed_within_the_delay(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(VALIDITY + 0.1)
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    with pytest.raises(LeaseLost):
        lease.ensure()
    assert left_ms(five) == {round((TTL + DELAY - VALIDITY - 0.1) * 1000)}


def test_a_release_frees_a_lock_at_once(five: Network, redlock: TaskLock, lease: Lease) -> None:
    redlock.release(lease)
    assert redlock.acquire("k", TTL).token > lease.token


def test_a_release_after_the_deadline_does_not_end_the_delay(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(VALIDITY + 1)
    redlock.release(lease)
    five.pass_(lease.deadline + DELAY - five.time - 0.01)
    with pytest.raises(LockHeld):
        redlock.acquire("k", TTL)
    five.pass_(0.02)
    assert redlock.acquire("k", TTL).token > lease.token


def test_a_late_release_without_the_delay_keeps_the_lock_as_told(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(VALIDITY + 1)
    redlock.release(lease, keep=2.0, is_delayed=False)
    assert left_ms(five) == {2000}


def test_a_release_after_the_delay_frees_what_is_left(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(lease.deadline + DELAY + 0.001 - five.time)
    assert left_ms(five) != {0}
    redlock.release(lease)
    assert redlock.acquire("k", TTL).token > lease.token


def test_a_release_that_is_sent_late_does_not_end_the_delay(
    five: Network, redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    five.pass_(VALIDITY + 1)
    register = redlock.keeper.register_cleanup

    def stand_still(request: ReleaseRequest) -> None:
        five.pass_(6)
        register(request)

    monkeypatch.setattr(redlock.keeper, "register_cleanup", stand_still)
    redlock.release(lease)
    assert left_ms(five) == {round((lease.deadline + DELAY - five.time) * 1000)} == {3000}


def test_what_an_interrupt_left_to_the_keeper_keeps_the_delay(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(lease.deadline - five.time - 0.001)
    assert lease.delayed_until(five.time) == 0.0
    five.pass_(0.001)
    assert lease.delayed_until(five.time) == lease.deadline + DELAY
    redlock.keeper.take_over(lease)
    [request] = redlock.keeper._releases._pending.values()
    assert request.keep_until == pytest.approx(lease.deadline + DELAY)


def test_an_extension_renews_lease_and_delay(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(15)
    redlock.extend(lease)
    assert left_ms(five) == {30_000}
    assert lease.deadline == pytest.approx(five.time + VALIDITY)


def test_past_its_hold_an_extension_keeps_the_delay(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    lease.hold_until = five.time + 5
    deadline = lease.deadline
    five.pass_(6)
    redlock.extend(lease)
    assert lease.deadline == deadline
    assert left_ms(five) == {24_000}


def test_the_keeper_renews_when_a_third_of_the_ttl_has_passed(five: Network, lease: Lease) -> None:
    assert keeper.due_at(lease, five.time) == pytest.approx(five.time + TTL / 3)


def test_a_failed_release_is_repeated_until_the_delay_is_over(
    five: Network, redlock: TaskLock
) -> None:
    with redlock.lock("k", TTL, lock_delay=DELAY) as lease:
        assert left_ms(five) == {30_000}
        redlock.keeper.take_over(lease)
        [request] = redlock.keeper._releases._pending.values()
        assert request.ends_at == pytest.approx(gone_at(lease))


def test_ttl_and_delay_fit_the_restart_guard_together(redlock: TaskLock) -> None:
    with pytest.raises(ConfigurationError, match="lock_delay=41"):
        redlock.acquire("k", TTL, lock_delay=41)
    with pytest.raises(ConfigurationError, match="lock_delay=41"):
        redlock.lock("k", TTL, lock_delay=41)


def test_a_copied_hold_keeps_its_delay(five: Network, redlock: TaskLock) -> None:
    hold = redlock.lock("k", TTL, lock_delay=DELAY)
    again, _ = hold.__reduce__()
    with again(redlock):
        assert left_ms(five) == {30_000}
