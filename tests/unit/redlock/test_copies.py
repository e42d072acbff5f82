"""Copies and pickles of a lock are made from its arguments; those of a lease are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.events import Event
from celery_redlock.redlock.hold import Hold
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.simulated_network import Network

URLS = ["redis://:secret@node-0", "redis://node-1", "redis://node-2"]
seen: list[Event] = []


def observe(event: Event) -> None:
    seen.append(event)


def on_lost(lease: Lease) -> None: ...


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))  # noqa: S301  # made here


copies = pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
ways = pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])


@ways
@pytest.mark.parametrize("kind", [Redlock, TaskLock])
def test_a_copied_lock_has_the_same_arguments(
    again: Callable[[Redlock], Redlock], kind: type[Redlock]
) -> None:
    arguments = {
        "node_timeout": 0.5,
        "max_ttl": 100.0,
        "max_clock_skew": 2.0,
        "restart_guard": False,
        "key_prefix": "mine",
        "floor_ttl": 50.0,
        "idle_timeout": 7.0,
        "max_connections": 3,
    }
    redlock = kind(URLS, observers=[observe], **arguments)  # type: ignore[arg-type]
    other = again(redlock)
    assert type(other) is kind
    assert other is not redlock
    assert other._arguments == redlock._arguments
    assert other._arguments.items() >= arguments.items()
    assert other.observers == [observe]
    assert [node.name for node in other.nodes] == [node.name for node in redlock.nodes]
    assert other._pool is not redlock._pool


def test_a_copied_lock_has_the_observers_and_clock_of_today() -> None:
    redlock = Redlock(URLS, clock=FakeClock())
    redlock.observers.append(observe)
    other = copy.copy(redlock)
    assert other.observers == [observe]
    assert other.observers is not redlock.observers
    assert other.clock is redlock.clock


@copies
def test_a_copied_lock_and_the_first_exclude_each_other(
    five: Network, redlock: Redlock, again: Callable[[Redlock], Redlock]
) -> None:
    other = again(redlock)
    with redlock.lock("k") as lease:
        assert other.keeper.kept() == []
        with pytest.raises(LockHeld), other.lock("k"):
            pytest.fail("entered")
        other.close()
        assert redlock.keeper.kept() == [lease]


@copies
def test_a_copied_hold_has_blocks_of_its_own(
    five: Network, redlock: Redlock, again: Callable[[Hold], Hold]
) -> None:
    hold = redlock.lock("k", 20.0, max_hold=90.0, label="mine", on_lost=on_lost)
    with hold as lease:
        other = again(hold)
        with pytest.raises(LockHeld), other:
            pytest.fail("entered")
        other.__exit__(None, None, None)
        assert five.holders() == [lease.owner] * 5
    with other as lease:
        assert lease.ttl_ms == 20_000
        assert lease.hold_until == lease.acquired_at + 90.0
        assert lease.owner.partition(":")[2].startswith("mine@")


def test_a_shallow_copy_of_a_hold_is_on_the_same_lock(redlock: Redlock) -> None:
    hold = redlock.lock("k")
    assert copy.copy(hold)._lock is redlock
    other, others = copy.deepcopy((redlock, hold))
    assert others._lock is other
    assert other is not redlock


def test_a_pickled_hold_has_the_same_arguments() -> None:
    redlock = Redlock(URLS, key_prefix="mine")
    hold = redlock.lock("k", 20.0, wait=3.0, max_hold=90.0, label="mine", on_lost=on_lost)
    other = pickled(hold)
    assert isinstance(other._lock, Redlock)
    assert other._lock.key_prefix == "mine"
    assert other._max_hold == 90.0
    assert other._on_lost is on_lost
    assert other._acquire.args == hold._acquire.args  # type: ignore[attr-defined]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_lease_is_not_copied_and_says_what_to_do(
    lease: Lease, again: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match=r"^cannot copy or pickle the lease on 'k': its holder"):
        again(lease)
    assert not lease.is_released


def test_what_a_hold_calls_must_be_picklable_itself(five: Network, redlock: Redlock) -> None:
    hold = redlock.lock("k", on_lost=lambda lease: None)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(hold)


@ways
def test_a_copied_lock_has_the_nodes_of_the_first_one(again: Callable[[Redlock], Redlock]) -> None:
    urls = list(URLS)
    redlock = Redlock(urls)
    del urls[1:]
    assert [node.name for node in again(redlock).nodes] == [node.name for node in redlock.nodes]


def test_a_lease_that_is_not_copied_repeats_little_of_its_key(redlock: Redlock) -> None:
    lease = redlock.acquire("k" * 1000, ttl=5.0)
    with pytest.raises(TypeError, match=r"1000 characters") as refused:
        copy.copy(lease)
    assert len(str(refused.value)) < 500
