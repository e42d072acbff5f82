"""Renewing a lease on real servers: who counts, who is healed, and what ends it for good."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld, QuorumUnavailable
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import validity_ms
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.faults.proxy import Proxy
from tests.support.judges.nodes import (
    assert_freed,
    expire_on,
    floor_on,
    holder_on,
    holders_on,
    ms_left_on,
    set_ttl_on,
    take_on,
)


@pytest.fixture
def clock() -> LeapingClock:
    return LeapingClock()


@pytest.fixture
def redlock(five: Servers, new_redlock: NewRedlock, clock: LeapingClock) -> TaskLock:
    return new_redlock(five.urls, clock=clock)


def test_an_extension_renews_the_whole_ttl_from_its_own_start(
    five: Servers, redlock: TaskLock, clock: LeapingClock
) -> None:
    lease = redlock.acquire("k", ttl=30)
    set_ttl_on(five, "k", 15)
    clock.leap(20)
    before = clock.now()
    redlock.extend(lease)
    validity = validity_ms(30_000, 0) / 1000
    assert before + validity <= lease.deadline <= clock.now() + validity
    eventually(lambda: min(ms_left_on(server, "k") for server in five) > 15_000)


def test_an_extension_keeps_the_token(redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    token = lease.token
    for _ in range(5):
        redlock.extend(lease)
    assert lease.token == token


def test_ensure_renews_as_well(five: Servers, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    deadline = lease.deadline
    set_ttl_on(five, "k", 15)
    lease.ensure()
    assert lease.deadline > deadline
    eventually(lambda: min(ms_left_on(server, "k") for server in five) > 15_000)


def test_each_lease_of_a_batch_has_an_outcome_of_its_own(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    leases = [redlock.acquire(f"k{number}", 60) for number in range(600)]
    lost = leases[::50]
    for lease in lost:
        expire_on(five, lease.key)
        rival.acquire(lease.key)
    redlock.release(leases[1])
    outcomes = redlock.extend_all(leases)
    for lease, outcome in zip(leases, outcomes, strict=True):
        if lease in lost:
            assert isinstance(outcome, LeaseLost)
            assert outcome.key == lease.key
        elif lease is leases[1]:
            assert isinstance(outcome, LeaseLost)
            assert outcome.reason == "it was released"
        else:
            assert outcome is None
    assert redlock.extend_all([]) == []


# ---- healing


def test_a_healed_node_counts_at_the_next_extension(five: Servers, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    five[0].restart()
    five[1].restart()

    def is_healed() -> bool:
        redlock.extend(lease)
        return holders_on(five[:2], "k") == [lease.owner] * 2

    eventually(is_healed)
    assert floor_on(five[0], "k") == lease.token
    # It needs them now.
    five[2].kill()
    five[3].kill()
    redlock.extend(lease)
    lease.ensure()


def test_healed_nodes_make_up_a_majority_only_the_next_time(
    five: Servers, redlock: TaskLock
) -> None:
    lease = redlock.acquire("k")
    deadline = lease.deadline
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    expire_on(five[:3], "k")
    with pytest.raises(QuorumUnavailable, match="cannot extend 'k'") as caught:
        redlock.extend(lease)
    assert "it had lost the key" in str(caught.value)
    assert lease.deadline == deadline
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    redlock.extend(lease)
    assert lease.deadline > deadline


def test_a_lock_that_somebody_else_had_in_between_is_not_healed(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    expire_on(five, "k")
    other = rival.acquire("k")
    eventually(lambda: holders_on(five, "k") == [other.owner] * 5)
    expire_on(five, "k")  # free again, but with a higher floor
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert holders_on(five, "k") == [None] * 5


def test_a_refused_attempt_on_a_forgetful_node_ends_no_lease(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    expire_on(five[:2], "k")
    with pytest.raises(LockHeld):
        rival.acquire("k")
    eventually(lambda: holders_on(five, "k") == [None] * 2 + [lease.owner] * 3, within=25)
    assert floor_on(five[0], "k") > lease.token
    lease.ensure()
    lease.ensure()


@pytest.mark.parametrize("keep", [0, 600])
def test_an_extension_under_way_does_not_revive_a_released_lock(
    five: Servers,
    new_redlock: NewRedlock,
    rival: TaskLock,
    proxy_for: Callable[[Server], Proxy],
    keep: float,
) -> None:
    proxies = [proxy_for(server) for server in five]
    slow = new_redlock([proxy.url for proxy in proxies], node_timeout=100)
    slow.release(slow.acquire("other"))
    lease = rival.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    for proxy in proxies:
        proxy.requests.holds = True
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.extend(slow.extend_all([lease])))
    thread.start()
    channel = slow._pool._idle
    eventually(lambda: not channel, "its extension is on its way")
    rival.release(lease, keep=keep)
    eventually(lambda: all(floor_on(server, "k") > lease.token for server in five))
    for proxy in proxies:
        proxy.requests.holds = False
    thread.join()
    assert isinstance(outcome[0], LeaseLost)
    assert holders_on(five, "k") == [lease.owner if keep else None] * 5
    if not keep:
        rival.acquire("k").ensure()


# ---- lost


def test_a_lease_past_its_deadline_is_lost_whatever_nodes_say(
    redlock: TaskLock, clock: LeapingClock
) -> None:
    lease = redlock.acquire("k", ttl=30)
    clock.leap(20)
    lease.ensure()
    clock.leap(29.8)
    assert lease.lost
    assert lease.remaining() == 0
    with pytest.raises(LeaseLost):
        lease.ensure()
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert lease.lost


def test_what_is_lost_is_never_renewed_again(
    five: Servers, redlock: TaskLock, clock: LeapingClock
) -> None:
    lease = redlock.acquire("k", ttl=30)
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    set_ttl_on(five, "k", 20)
    expire_on(five[4:], "k")
    clock.leap(40)
    for _ in range(3):
        assert isinstance(redlock.extend_all([lease])[0], LeaseLost)
        with pytest.raises(LeaseLost):
            lease.ensure()
    redlock.release(redlock.acquire("other"))  # and with it all that was sent
    assert max(ms_left_on(server, "k") for server in five) <= 20_000
    assert holder_on(five[4], "k") is None


def test_what_was_released_is_never_renewed_again(five: Servers, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    redlock.release(lease)
    assert_freed(five, "k")
    # A node that its release never reached, and one that has forgotten everything.
    take_on(five[:1], "k", lease.owner, 20)
    for server in five[:2]:
        with server.client() as client:
            client.delete("redlock:{k}:floor")
    for _ in range(3):
        with pytest.raises(LeaseLost, match="it was released"):
            redlock.extend(lease)
    redlock.release(redlock.acquire("other"))
    assert ms_left_on(five[0], "k") <= 20_000
    assert holder_on(five[1], "k") is None


def test_an_extension_longer_than_its_lease_does_not_revive_it(
    five: Servers, new_redlock: NewRedlock
) -> None:
    class NappingClock(LeapingClock):
        naps = False

        def now(self) -> float:
            if self.naps:
                self.leap(20)
            return super().now()

    clock = NappingClock()
    redlock = new_redlock(five.urls, clock=clock, node_timeout=10_000)
    lease = redlock.acquire("k", ttl=30)
    clock.naps = True
    assert isinstance(redlock.extend_all([lease])[0], LeaseLost)
    clock.naps = False
    assert lease.lost
    with pytest.raises(LeaseLost):
        redlock.extend(lease)


def test_a_lease_that_others_have_by_now_is_lost(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    expire_on(five, "k")
    other = rival.acquire("k")
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert lease.lost
    assert lease.remaining() == 0
    with pytest.raises(LeaseLost):
        lease.ensure()
    other.ensure()


def test_a_lease_is_lost_for_good_though_the_others_are_gone(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    expire_on(five, "k")
    other = rival.acquire("k")
    with pytest.raises(LeaseLost):
        lease.ensure()
    rival.release(other)
    take_on(five, "k", lease.owner)
    for server in five:
        with server.client() as client:
            client.delete("redlock:{k}:floor")
    with pytest.raises(LeaseLost):
        lease.ensure()
    with pytest.raises(LeaseLost):
        redlock.extend(lease)


# ---- kept


def test_a_kept_lease_that_is_lost_is_told_once(five: Servers, new_redlock: NewRedlock) -> None:
    seen: list[Event] = []
    redlock = new_redlock(five.urls, observers=[seen.append])
    told: list[Lease] = []
    lease = redlock.acquire("k", ttl=3)
    take_on(five, "k", "somebody:else@host")
    redlock.keeper.keep(lease, on_lost=told.append)
    eventually(lambda: told)
    assert lease.lost
    assert redlock.keeper.kept() == []
    assert [event for event in seen if isinstance(event, Lost)] == [
        Lost(lease, "it could not be renewed in time")
    ]
    assert told == [lease]
    assert holders_on(five, "k") == ["somebody:else@host"] * 5


def test_the_keeper_renews_through_the_death_of_a_minority(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    with redlock.lock("k", ttl=3) as lease:
        first = lease.deadline
        five[0].kill()
        five[1].pause()
        eventually(lambda: lease.deadline > first)
        second = lease.deadline
        eventually(lambda: lease.deadline > second)
        assert not lease.lost
