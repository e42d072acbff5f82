"""How a lock's parts are connected, and what is left of them at the end and after a fork."""

from __future__ import annotations

from typing import cast
from weakref import WeakSet

import pytest

from celery_redlock.redlock import parts
from celery_redlock.redlock.defaults import IDLE_TIMEOUT_S
from celery_redlock.redlock.events import Event, NodeRefuses
from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.waiters import Queue
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.simulated_network import Network, SimulatedChannel

URLS = ["redis://a", "redis://b", "redis://c"]


@pytest.mark.parametrize(("node_timeout", "connect_timeout"), [(0.05, 1.0), (0.5, 2.0)])
def test_each_part_gets_the_arguments_of_its_lock(
    monkeypatch: pytest.MonkeyPatch, node_timeout: float, connect_timeout: float
) -> None:
    """A connection may take longer than a reply."""
    for name in ("Channel", "Subscriptions"):
        monkeypatch.setattr(parts, name, lambda *arguments: arguments)
    clock = FakeClock()
    redlock = TaskLock(
        URLS, clock=clock, node_timeout=node_timeout, key_prefix="mine", max_ttl=90.0,
        max_clock_skew=0.25, max_connections=3,
    )  # fmt: skip
    nodes, pool, waiters = redlock.nodes, redlock._pool, redlock._waiters
    made: list[object] = [pool.make(), redlock._keepers_pool.make(), waiters._subscribe()]
    assert made == [(nodes, clock, node_timeout, connect_timeout)] * 3
    assert (pool._most, pool._patience, pool._sleep) == (3, connect_timeout, clock.sleep)
    assert (waiters.clock, waiters._quorum, redlock.quorum) == (clock, 2, 2)
    guard, names = guard_s(90.0, 0.25), tuple(f"{name}:6379" for name in "abc")
    for node, name in zip(nodes, names, strict=True):
        assert (node.clock, node.peers) == (clock, nodes)
        assert node.observe == redlock._audience.observe
        assert node._connector.timeout == connect_timeout
        assert (node._guard.guard_s, node._guard._admitted_s) == (guard, guard_s(0.0, 0.25))
        assert node._handshake._admission == Admission("mine", names, name, guard)


@pytest.fixture
def used(five: Network, monkeypatch: pytest.MonkeyPatch) -> TaskLock:
    """A lock with a lease that is renewed, and with channels of both pools."""
    monkeypatch.setattr(parts, "_instances", WeakSet())
    redlock = five.redlock()
    redlock.acquire("k", renew=True)
    redlock.keeper.tick()
    assert len(channels(redlock)) == 2
    return redlock


def channels(redlock: TaskLock) -> list[SimulatedChannel]:
    made = [*redlock._pool._made, *redlock._keepers_pool._made]
    return cast(list[SimulatedChannel], made)


@pytest.mark.parametrize("is_logged", [True, False])
def test_an_event_reaches_all_observers_and_maybe_the_log(
    used: TaskLock, monkeypatch: pytest.MonkeyPatch, is_logged: bool
) -> None:
    logged: list[Event] = []
    seen: list[Event] = []
    event = NodeRefuses("a", "no")
    monkeypatch.setattr(parts, "is_logged", lambda one: is_logged and one is event)
    used.log = logged.append
    used.observers.append(seen.append)
    used._audience.observe(event)
    assert (logged, seen) == ([event] * is_logged, [event])


def test_the_keeper_stays_connected_while_there_are_leases(
    used: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedChannel, "is_unused", lambda _, seconds: seconds == IDLE_TIMEOUT_S)
    assert used.keeper._tidy(True)
    assert (used._pool.has_channels(), used._keepers_pool.has_channels()) == (False, True)
    assert not used.keeper._tidy(False)
    assert channels(used) == []


def test_a_child_uses_nothing_of_its_parent(used: TaskLock) -> None:
    used.nodes[0].failed("it is down")
    used._waiters.queues["k"] = Queue(0.0)
    lent = channels(used)
    parts._after_fork_in_child()
    assert used.nodes[0].retry_at == 0.0
    assert (channels(used), used.keeper.kept(), used._waiters.queues) == ([], [], {})
    assert not any(channel.is_closed for channel in lent), "the parent uses them"


def test_a_closed_lock_ends_threads_and_connections(
    used: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(used.keeper._thread, "stop", lambda: ended.append("keeper"))
    monkeypatch.setattr(used._waiters, "close", lambda: ended.append("listener"))
    open_ones = channels(used)
    used.close()
    assert ended == ["keeper", "listener"]
    assert all(channel.is_closed for channel in open_ones)
