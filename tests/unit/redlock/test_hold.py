"""The ``with`` block that holds a lock, on simulated nodes."""

from __future__ import annotations

import logging
import os

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.errors import (
    ConfigurationError,
    LockHeld,
)
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.lease import Lease
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
    with pytest.raises(LockHeld), redlock.lock("k"):
        pytest.fail("entered")
    assert redlock.keeper.kept() == []


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


def test_a_block_s_lock_ends_with_max_hold(five: Network, redlock: Redlock) -> None:
    for node in five.nodes:
        node.delay = 0.01
    with redlock.lock("k", ttl=TTL, max_hold=25.0) as lease:
        assert lease.hold_until == lease.acquired_at + 25
        for _ in range(10):
            five.time = max(five.time, redlock.keeper.tick())
        assert lease.lost


@pytest.mark.parametrize("max_hold", [-1, float("nan"), "x"])
def test_a_max_hold_out_of_range_asks_nobody(
    five: Network, redlock: Redlock, max_hold: float
) -> None:
    with pytest.raises(ConfigurationError), redlock.lock("k", max_hold=max_hold):
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
    with redlock.lock("k", ttl=TTL) as lease:
        redlock.keeper.keep(lease, on_lost=told.append)
        seen.clear()
        for node in five.nodes[:3]:
            node.is_up = False
        for _ in range(100):
            five.time = max(five.time, redlock.keeper.tick())
        assert lease.lost
        assert told == [lease]
        assert [type(event) for event in seen] == [Lost]
