"""The ``with`` block that holds a lock, on simulated nodes."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.errors import (
    HELD_TOO_LONG,
    NEVER_RENEWED,
    NOT_RENEWED,
    TAKEN_AWAY,
    ConfigurationError,
    LeaseLost,
    LockHeld,
)
from celery_redlock.redlock.events import Acquired, Event, Lost
from celery_redlock.redlock.lease import Lease, task_of
from celery_redlock.redlock.protocol.replies import AckReply
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.simulated_network import Network

OTHER = "other:task-1@host"
TTL = 30.0


def test_a_block_holds_its_lock_and_gives_it_back(five: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL) as lease:
        assert five.holders() == [lease.owner] * 5
        assert redlock.keeper.kept() == [lease]
    assert five.holders() == [None] * 5
    assert redlock.keeper.kept() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_is_left_in_any_way_gives_it_back(
    five: Network, redlock: Redlock, error: type[BaseException]
) -> None:
    def fail() -> None:
        with redlock.lock("k"):
            raise error

    with pytest.raises(error):
        fail()
    assert five.holders() == [None] * 5
    assert redlock.keeper.kept() == []


def test_a_block_whose_lock_is_held_is_not_entered(five: Network, redlock: Redlock) -> None:
    for node in five.nodes:
        node.take(OTHER)
    began = five.time
    with pytest.raises(LockHeld), redlock.lock("k"):
        pytest.fail("entered")
    assert five.time == began, "at once, unless it is to wait"
    assert redlock.keeper.kept() == []


def test_a_block_names_its_holder(redlock: Redlock) -> None:
    with redlock.lock("k", label="nightly") as lease:
        assert task_of(lease.owner) == "nightly"


def test_a_block_waits_as_long_as_asked(five: Network, redlock: Redlock) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=5)
    with redlock.lock("k", wait=10) as lease:
        assert five.holders() == [lease.owner] * 5


def test_a_block_s_lock_outlives_its_ttl_by_renewal(five: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL) as lease:
        for _ in range(10):
            five.time = max(five.time, redlock.keeper.tick())
            redlock.keeper.tick()
            five.pass_(0)
        assert five.time > 1000 + 2 * TTL
        assert not lease.lost
        assert five.holders() == [lease.owner] * 5


def test_a_lease_may_be_renewed_without_end(five: Network, redlock: Redlock) -> None:
    assert redlock.acquire("k", renew=True, max_hold=math.inf).hold_until == math.inf
    with pytest.raises(ConfigurationError, match=r"^max_hold must be"):
        redlock.acquire("k", renew=True, max_hold=-1.0)


def test_a_block_may_hold_its_lock_without_end(five: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL, max_hold=math.inf) as lease:
        assert lease.hold_until == math.inf


def test_a_block_that_is_not_held_is_left_without_a_release(
    five: Network, redlock: Redlock
) -> None:
    block = redlock.lock("k")
    block.__exit__(None, None, None)
    for node in five.nodes:
        node.take(OTHER, ttl=5)
    with pytest.raises(LockHeld):
        block.__enter__()
    five.pass_(5.0)
    five.log.clear()
    block.__exit__(None, None, None)
    assert five.log == []
    with block:
        pass
    five.log.clear()
    block.__exit__(None, None, None)
    assert five.log == []


def test_a_block_s_lock_ends_with_max_hold(five: Network, redlock: Redlock) -> None:
    for node in five.nodes:
        node.delay = 0.01
    is_raised = pytest.raises(LeaseLost)
    with is_raised, redlock.lock("k", ttl=TTL, max_hold=25.0) as lease:
        assert lease.hold_until == lease.acquired_at + 25
        for _ in range(10):
            five.time = max(five.time, redlock.keeper.tick())
        assert lease.lost


@pytest.mark.parametrize("max_hold", [-1, float("nan"), "x"])
def test_a_max_hold_out_of_range_asks_nobody(
    five: Network, redlock: Redlock, max_hold: float
) -> None:
    is_raised = pytest.raises(ConfigurationError, match=r"^max_hold must be")
    with is_raised, redlock.lock("k", max_hold=max_hold):
        pytest.fail("entered")
    assert five.log == []


def test_a_block_whose_release_fails_only_warns(
    five: Network, redlock: Redlock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), redlock.lock("k") as lease:
        for node in five.nodes[:3]:
            node.is_up = False
    assert "lock not released key=k" in caplog.text
    assert lease.is_released


def test_a_child_that_leaves_the_block_leaves_the_lock(
    five: Network, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redlock.lock("k") as lease:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not lease.is_released
    assert five.holders() == [lease.owner] * 5


def test_a_kept_lease_that_is_lost_is_told_once(
    five: Network, redlock: Redlock, seen: list[Event]
) -> None:
    told: list[Lease] = []
    block = redlock.lock("k", ttl=TTL, on_lost=told.append)
    is_raised = pytest.raises(LeaseLost, match="'k'")
    with is_raised, block as lease:
        seen.clear()
        for node in five.nodes[:3]:
            node.is_up = False
        for _ in range(100):
            five.time = max(five.time, redlock.keeper.tick())
        assert lease.lost
        assert told == [lease]
        assert [type(event) for event in seen] == [Lost]


def lose(lease: Lease, five: Network) -> None:
    five.pass_(lease.remaining() + 1)


def drop(lease: Lease, five: Network) -> None:
    assert five.redlock().drop(lease.key)


def told_by_the_keeper(redlock: Redlock, seen: list[Event]) -> list[Lost]:
    """Return the losses that the next ticks report; none was reported before."""
    assert not any(isinstance(event, Lost) for event in seen)
    for _ in range(3):
        redlock.keeper.tick()
    return [event for event in seen if isinstance(event, Lost)]


@pytest.mark.parametrize(("end", "reason"), [(lose, NOT_RENEWED), (drop, TAKEN_AWAY)])
def test_a_loss_found_on_leaving_is_reported_once(
    five: Network, redlock: Redlock, seen: list[Event], end: Callable[[Lease, Network], None],
    reason: str,
) -> None:  # fmt: skip
    told: list[Lease] = []
    is_raised = pytest.raises(LeaseLost)
    with is_raised, redlock.lock("k", ttl=TTL, on_lost=told.append) as lease:
        end(lease, five)
    assert told == [], "the keeper's thread calls it"
    assert told_by_the_keeper(redlock, seen) == [Lost(lease, reason)]
    assert told == [lease]


@pytest.mark.parametrize("end", [lose, drop])
@pytest.mark.parametrize("find", ["ensure", "extend", "release"])
@pytest.mark.parametrize("renew", [True, False])
def test_a_loss_that_the_holder_finds_is_reported_once(
    five: Network, redlock: Redlock, seen: list[Event], end: Callable[[Lease, Network], None],
    find: str, renew: bool,
) -> None:  # fmt: skip
    told: list[Lease] = []
    lease = redlock.acquire("k", TTL, renew=renew, on_lost=told.append if renew else None)
    end(lease, five)
    for _ in range(2):
        with suppress(LeaseLost):
            getattr(lease, find)()
    assert lease.lost
    lease.release()
    assert told == []
    assert [event.lease for event in told_by_the_keeper(redlock, seen)] == [lease]
    assert told == ([lease] if renew else [])


def test_a_loss_that_ensure_finds_is_reported_at_once(
    five: Network, redlock: Redlock, seen: list[Event]
) -> None:
    with suppress(LeaseLost), redlock.lock("k", ttl=TTL) as lease:
        drop(lease, five)
        with pytest.raises(LeaseLost):
            lease.ensure()
        assert told_by_the_keeper(redlock, seen) == [Lost(lease, TAKEN_AWAY)]


@pytest.mark.parametrize("end", [lose, drop])
def test_a_lost_lease_is_not_told_as_released(
    five: Network, redlock: Redlock, seen: list[Event], end: Callable[[Lease, Network], None]
) -> None:
    """So that locks can be counted: each that was acquired ends once."""
    with suppress(LeaseLost), redlock.lock("k", ttl=TTL) as lease:
        end(lease, five)
    lease.release()
    redlock.keeper.tick()
    assert [type(event) for event in seen] == [Acquired, Lost]


def test_ensure_tells_of_a_loss_once_and_asks_nobody(
    five: Network, redlock: Redlock, seen: list[Event]
) -> None:
    lease = redlock.acquire("k", ttl=TTL)
    lose(lease, five)
    five.log.clear()
    for _ in range(2):
        with pytest.raises(LeaseLost, match=r"nothing renewed it$"):
            lease.ensure()
    [lost] = told_by_the_keeper(redlock, seen)
    assert lost == Lost(lease, NEVER_RENEWED)
    assert five.log == []


def test_a_loss_says_that_max_hold_was_over(
    five: Network, redlock: Redlock, seen: list[Event]
) -> None:
    with suppress(LeaseLost), redlock.lock("k", ttl=TTL, max_hold=TTL / 2) as lease:
        lose(lease, five)
        with pytest.raises(LeaseLost, match=r"held for as long as it may be$"):
            lease.ensure()
    assert [lost.reason for lost in told_by_the_keeper(redlock, seen)] == [HELD_TOO_LONG]


def test_a_block_that_nobody_can_leave_loses_its_lease(
    five: Network, redlock: Redlock, seen: list[Event]
) -> None:
    told: list[Lease] = []
    lease = redlock.lock("k", ttl=TTL, on_lost=told.append).__enter__()
    [lost] = told_by_the_keeper(redlock, seen)
    assert told == [lost.lease] == [lease]
    assert lease.lost
    assert lease.remaining() == 0.0
    assert five.holders() == [None] * 5
    with pytest.raises(LeaseLost, match="nothing refers to its block any more"):
        lease.ensure()


def test_a_block_that_is_struck_as_it_is_left_has_released_its_lease(
    redlock: Redlock, seen: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(lease: Lease) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), redlock.lock("k", ttl=TTL) as lease:
        monkeypatch.setattr(redlock, "release", interrupt)
    assert lease.is_released
    assert lease.remaining() == 0.0
    assert told_by_the_keeper(redlock, seen) == []
    assert not lease.lost


def test_a_block_that_raises_keeps_its_error_though_lost(five: Network, redlock: Redlock) -> None:
    is_raised = pytest.raises(ValueError, match="mine")
    with is_raised, redlock.lock("k", ttl=TTL) as lease:
        lose(lease, five)
        raise ValueError("mine")


def test_a_lock_that_others_took_meanwhile_is_found_on_leaving(
    five: Network, redlock: Redlock
) -> None:
    is_raised = pytest.raises(LeaseLost)
    with is_raised, redlock.lock("k", ttl=TTL) as lease:
        assert five.redlock().drop("k")
        assert not lease.lost
    assert lease.lost


def test_a_loss_that_the_slowest_node_shows_is_found_on_leaving(
    five: Network, redlock: Redlock
) -> None:
    is_raised = pytest.raises(LeaseLost)
    with is_raised, redlock.lock("k", ttl=TTL) as lease:
        for node in five.nodes[3:]:
            node.is_up = False
        assert five.redlock().drop("k")
        for node in five.nodes[3:]:
            node.is_up = True
        # The two that were not reached still have the lock, and a majority has not.
        five.nodes[0].delay = five.nodes[1].delay = 0.01
    assert lease.lost
    assert five.holders() == [None] * 5


def test_a_release_waits_for_no_node_that_can_not_show_a_loss(
    five: Network, redlock: Redlock
) -> None:
    with redlock.lock("k", ttl=TTL) as lease:
        five.expire(nodes=[0])
        for node in five.nodes[3:]:
            node.is_up = False
        began = five.time
    assert not lease.lost
    assert five.time == began


def test_a_release_that_the_keeper_made_first_is_no_loss(
    five: Network, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = redlock._release._make

    def late(request: ReleaseRequest, *how: Any) -> Sequence[AckReply | None]:
        make(request)  # as the keeper does once it is overdue
        five.pass_(request.due - five.time)
        return make(request, *how)

    monkeypatch.setattr(redlock._release, "_make", late)
    with redlock.lock("k", ttl=TTL) as lease:
        pass
    assert not lease.backing.is_lost


@pytest.mark.parametrize("renew", [True, False])
def test_a_release_that_another_thread_made_first_is_no_loss(
    five: Network, redlock: Redlock, seen: list[Event], monkeypatch: pytest.MonkeyPatch,
    renew: bool,
) -> None:  # fmt: skip
    make = redlock._release._make
    lease = redlock.acquire("k", TTL, renew=renew)

    def late(request: ReleaseRequest, *how: Any) -> Sequence[AckReply | None]:
        monkeypatch.setattr(redlock._release, "_make", make)
        lease.release()
        return make(request, *how)

    monkeypatch.setattr(redlock._release, "_make", late)
    lease.release()
    assert five.holders() == [None] * 5
    assert told_by_the_keeper(redlock, seen) == []
    assert not lease.lost


def test_a_node_that_lost_the_key_loses_no_lease(five: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL) as lease:
        five.expire([0, 1])
    assert not lease.lost


def test_a_lease_released_inside_its_block_is_not_lost(five: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL) as lease:
        lease.release()
        assert five.holders() == [None] * 5
        lease.release()
    assert not lease.lost


# ---- a lease as a block


def test_a_lease_is_released_on_leaving_its_block(five: Network, redlock: Redlock) -> None:
    with redlock.acquire("k") as lease:
        assert five.holders() == [lease.owner] * 5
        assert redlock.keeper.kept() == []
    assert five.holders() == [None] * 5
    assert not lease.lost


def test_a_lost_lease_raises_on_leaving_its_block(five: Network, redlock: Redlock) -> None:
    with pytest.raises(LeaseLost), redlock.acquire("k", ttl=TTL) as lease:
        lose(lease, five)


def test_a_child_that_leaves_a_lease_s_block_leaves_the_lock(
    five: Network, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redlock.acquire("k") as lease:
        monkeypatch.setattr(os, "getpid", lambda: -1)
    assert five.holders() == [lease.owner] * 5


def test_a_lease_s_inner_block_leaves_it_to_the_outer(five: Network, redlock: Redlock) -> None:
    with redlock.acquire("k") as lease:
        with lease:
            pass
        assert five.holders() == [lease.owner] * 5
    assert five.holders() == [None] * 5


def test_a_lease_lost_in_an_inner_block_raises_at_both_ends(
    five: Network, redlock: Redlock
) -> None:
    is_outer, is_inner = pytest.raises(LeaseLost), pytest.raises(LeaseLost)
    with is_outer, redlock.acquire("k", ttl=TTL) as lease:
        with is_inner, lease:
            lose(lease, five)
        assert five.asked("RELEASE") == []


def test_a_child_s_block_of_a_lease_leaves_it_to_its_parent(
    five: Network, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redlock.acquire("k") as lease:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            with lease:
                pass
        assert five.holders() == [lease.owner] * 5
    assert five.holders() == [None] * 5


def test_a_lease_that_has_ended_enters_no_block(five: Network, redlock: Redlock) -> None:
    lost, released = redlock.acquire("k", ttl=TTL), redlock.acquire("other")
    lose(lost, five)
    with pytest.raises(LeaseLost, match="nothing renewed it"), lost:
        pytest.fail("entered")
    released.release()
    with pytest.raises(LeaseLost, match="it was released"), released:
        pytest.fail("entered")


def test_a_lease_is_extended_by_its_holder(five: Network, redlock: Redlock) -> None:
    lease = redlock.acquire("k", ttl=TTL)
    five.pass_(TTL / 2)
    lease.extend()
    assert lease.remaining() > TTL * 0.9


def test_a_renewed_lease_is_kept_until_it_is_released(five: Network, redlock: Redlock) -> None:
    told: list[Lease] = []
    lease = redlock.acquire("k", ttl=TTL, renew=True, max_hold=100.0, on_lost=told.append)
    assert redlock.keeper.kept() == [lease]
    assert lease.hold_until == lease.acquired_at + 100
    for _ in range(5):
        five.time = max(five.time, redlock.keeper.tick())
    lease.release()
    assert redlock.keeper.kept() == []
    assert told == []


def test_a_renewed_lease_that_is_lost_is_told(five: Network, redlock: Redlock) -> None:
    told: list[Lease] = []
    lease = redlock.acquire("k", ttl=TTL, renew=True, on_lost=told.append)
    five.redlock().drop("k")
    for _ in range(2):
        five.time = max(five.time, redlock.keeper.tick())
    assert told == [lease]


def test_on_lost_without_a_renewal_is_refused(five: Network, redlock: Redlock) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^on_lost is called by the renewal; add renew=True$"
    ):
        redlock.acquire("k", on_lost=print)
    assert five.log == []


def test_a_task_s_lease_is_not_ended_by_hand(five: Network) -> None:
    lease = five.redlock().acquire_for_task("k")
    for end in (lease.release, lease.extend):
        with pytest.raises(ConfigurationError, match="the run of its task"):
            end()
    assert five.holders() == [lease.owner] * 5
