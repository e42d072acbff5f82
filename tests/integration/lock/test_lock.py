"""Acquire and release on five real servers that are all well."""

from __future__ import annotations

import socket

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld
from celery_redlock.redlock.acquisition import Acquisition
from celery_redlock.redlock.protocol.quorum import drift_ms
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    expire_on,
    floors_on,
    holders_on,
    ms_left_on,
    take_on,
)

# ---- acquire


def test_a_lease_stands_on_a_majority_with_its_token_as_floor(
    five: Servers, redlock: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=20)
    assert holders_on(five, "k").count(lease.owner) >= 3
    assert floors_on(five, "k").count(lease.token) >= 3
    assert 0 < ms_left_on(five[0], "k") <= 20_000


def test_a_lease_counts_from_before_the_first_node_was_asked(redlock: TaskLock) -> None:
    before = redlock.clock.now()
    lease = redlock.acquire("k", ttl=20)
    assert before <= lease.acquired_at <= redlock.clock.now()
    assert lease.deadline - lease.acquired_at == pytest.approx(20 - drift_ms(20_000) / 1000)
    assert 0 < lease.remaining() <= 20 - drift_ms(20_000) / 1000


def test_tokens_grow_from_holder_to_holder(redlock: TaskLock, rival: TaskLock) -> None:
    tokens = []
    for client in [redlock, rival] * 10:
        lease = client.acquire("k")
        tokens.append(lease.token)
        client.release(lease)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("skew_us", [-(10**15), -5_000_000, 5_000_000, 10**15])
def test_tokens_grow_though_a_client_s_wall_clock_is_wrong(
    five: Servers, redlock: TaskLock, new_redlock: NewRedlock, skew_us: int
) -> None:
    class WrongClock(LeapingClock):
        def wall_us(self) -> int:
            return max(0, super().wall_us() + skew_us)

    wrong = new_redlock(five.urls, clock=WrongClock())
    tokens = []
    for client in [redlock, wrong] * 5:
        lease = client.acquire("k")
        tokens.append(lease.token)
        client.release(lease)
    assert tokens == sorted(set(tokens))
    assert tokens[-1] - tokens[0] < 600e6, "nor does it carry the others away"


def let_two_of_three_be_ahead(five: Servers, key: str, floor: int) -> None:
    for server in five[:2]:
        with server.client() as client:
            client.set(f"redlock:{{{key}}}:floor", floor)


@pytest.mark.parametrize("is_held", [False, True], ids=["granted", "refused"])
def test_a_clock_behind_costs_its_client_one_confirmation(
    five: Servers, new_redlock: NewRedlock, monkeypatch: pytest.MonkeyPatch, is_held: bool
) -> None:
    redlock = new_redlock(five.urls, max_clock_skew=3600.0)
    redlock.check()
    ahead = redlock.clock.wall_us() + 1_800_000_000
    for server in five[3:]:
        server.pause()
    for key in ("seen", "k"):
        let_two_of_three_be_ahead(five, key, ahead)
    if is_held:
        take_on(five[:3], "seen", "somebody:else@host")
        with pytest.raises(LockHeld):
            redlock.acquire("seen")
    else:
        redlock.acquire("seen")
    monkeypatch.setattr(Acquisition, "_confirm", lambda *args: pytest.fail("was confirmed again"))
    assert redlock.acquire("k").token > ahead


def test_an_expired_lock_is_granted_anew_with_a_larger_token(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    first = redlock.acquire("k")
    expire_on(five, "k")
    second = rival.acquire("k")
    assert second.token > first.token
    with pytest.raises(LeaseLost):
        first.ensure()
    second.ensure()


def test_a_held_lock_is_refused_with_holder_and_remaining_time(
    redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=20, label="task-1")
    with pytest.raises(LockHeld) as caught:
        rival.acquire("k")
    assert caught.value.key == "k"
    assert caught.value.owner == lease.owner
    assert caught.value.holder == f"task-1@{socket.gethostname()}"
    assert 0 < caught.value.remaining <= 20
    assert not caught.value.contended
    lease.ensure()


def test_a_refused_attempt_leaves_nothing_behind(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    eventually(lambda: holders_on(five, "k") == [lease.owner] * 5)
    expire_on(five[3:], "k")
    with pytest.raises(LockHeld):
        rival.acquire("k")
    assert_freed(five[3:], "k")
    assert holders_on(five[:3], "k") == [lease.owner] * 3


def test_locks_with_different_keys_are_independent(redlock: TaskLock, rival: TaskLock) -> None:
    names = ["k", "K", "k ", "k:floor", "{k}", "k}", "ключ", "k" * 10_000, "k\n\r\0"]
    leases = [redlock.acquire(name) for name in names]
    for lease in leases:
        with pytest.raises(LockHeld):
            rival.acquire(lease.key)
        lease.ensure()


def test_locks_with_different_prefixes_are_independent(
    five: Servers, redlock: TaskLock, new_redlock: NewRedlock
) -> None:
    other = new_redlock(five.urls, key_prefix="another")
    redlock.acquire("k")
    lease = other.acquire("k")
    other.release(lease, keep=60, done="task")
    with five[0].client() as client:
        keys = {key.decode() for key in client.scan_iter(count=1000)}
    assert {key for key in keys if not key.startswith("redlock:")} == {
        "another:{k}", "another:{k}:floor", "another:{k}:done:task",
    }  # fmt: skip


def test_one_node_is_a_quorum_of_one(five: Servers, new_redlock: NewRedlock) -> None:
    single, rival = new_redlock(five.urls[:1]), new_redlock(five.urls[:1])
    with single.lock("k") as lease:
        with pytest.raises(LockHeld):
            rival.acquire("k")
        single.extend(lease)
    assert rival.acquire("k").token > lease.token


# ---- release


def test_a_released_lock_can_be_had_at_once(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    tokens = []
    for client, other in [(redlock, rival), (rival, redlock)] * 10:
        lease = client.acquire("k")
        tokens.append(lease.token)
        with pytest.raises(LockHeld):
            other.acquire("k")
        client.release(lease)
    assert_freed(five, "k")
    assert min(floors_on(five, "k")) > max(tokens)


def test_releasing_again_is_harmless(redlock: TaskLock, rival: TaskLock) -> None:
    lease = redlock.acquire("k")
    redlock.release(lease)
    redlock.release(lease)
    second = rival.acquire("k")
    redlock.release(lease)
    second.ensure()


def test_a_released_lease_is_over(redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    redlock.release(lease)
    assert lease.remaining() == 0
    assert not lease.lost
    with pytest.raises(LeaseLost, match="it was released"):
        lease.ensure()
    with pytest.raises(LeaseLost, match="it was released"):
        redlock.extend(lease)


def test_a_lease_that_was_lost_is_released_without_harm(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k")
    expire_on(five, "k")
    second = rival.acquire("k")
    redlock.release(lease)
    second.ensure()
    with pytest.raises(LockHeld):
        redlock.acquire("k")


def test_a_lock_is_kept_for_as_long_as_its_release_says(
    five: Servers, redlock: TaskLock, rival: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=30)
    redlock.release(lease, keep=600)
    with pytest.raises(LockHeld) as caught:
        rival.acquire("k")
    assert 30 < caught.value.remaining <= 600
    assert caught.value.owner == lease.owner
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    redlock.release(lease, keep=0.001)
    assert rival.acquire("k", wait=60).token > lease.token


# ---- interrupted


def owners_of_this_process(servers: Servers) -> list[str]:
    return [holder for holder in holders_on(servers, "k") if holder and "pid-" in holder]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["_grant", "_confirm", "_abandon"])
def test_an_attempt_that_is_interrupted_leaves_nothing_behind(
    five: Servers, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    redlock.check()
    if step == "_confirm":
        # Of the three that answer, two are ahead of the third.
        five[2].pause()
        five[3].pause()
        let_two_of_three_be_ahead(five, "k", redlock.clock.wall_us() + 60_000_000)
    elif step == "_abandon":
        take_on(five[:3], "k", "somebody:else@host")
    carry_out = getattr(Acquisition, step)
    strikes = [KeyboardInterrupt]  # as a soft time limit's signal might

    def be_interrupted(*args: object) -> object:
        if when == "before" and strikes:
            raise strikes.pop()
        outcome = carry_out(*args)
        if strikes:
            raise strikes.pop()
        return outcome

    monkeypatch.setattr(Acquisition, step, be_interrupted)
    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")
    for server in five[2:4]:
        server.resume()
    eventually(lambda: not owners_of_this_process(five), within=25)
    redlock.acquire("other").ensure()
