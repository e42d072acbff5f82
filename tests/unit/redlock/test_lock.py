"""Arguments and settings of a lock, on simulated nodes."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.errors import (
    NOT_RENEWED,
    AlreadyDone,
    ConfigurationError,
    LeaseLost,
    LockHeld,
)
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.lease import publication_of, task_of
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.validation import LONGEST_S
from celery_redlock.redlock.waiters import Waiters
from tests.support.calls import Colour, Misnamed
from tests.support.fakes.simulated_network import Network, SimulatedChannel

TTL = 30.0


# ---- what is asked for


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, 61, float("nan"), float("inf"), "30", None])
def test_a_ttl_out_of_range_asks_nobody(five: Network, redlock: TaskLock, ttl: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^(cannot lock 'k' with ttl=|ttl must be)"):
        redlock.acquire("k", ttl=ttl)
    assert five.log == []


@pytest.mark.parametrize("wait", [-1, float("nan"), "5"])
def test_a_wait_out_of_range_asks_nobody(five: Network, redlock: TaskLock, wait: float) -> None:
    for ask in (redlock.acquire, redlock.lock):
        with pytest.raises(ConfigurationError, match=r"^wait must be"):
            ask("k", wait=wait)
    assert five.log == []


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_reservation_out_of_range_asks_nobody(
    five: Network, redlock: TaskLock, ttl: float
) -> None:
    with pytest.raises(ConfigurationError, match=r"^ttl must be"):
        redlock.reserve("k", ttl=ttl)
    assert five.log == []


def test_the_longest_ttl_is_max_ttl(five: Network) -> None:
    lease = five.redlock(max_ttl=90.0).acquire("k", ttl=90)
    assert lease.ttl_ms == 90_000


def test_a_reservation_lasts_at_least_as_long_as_asked(five: Network, redlock: TaskLock) -> None:
    assert redlock.reserve("k", ttl=100.0001).ttl_ms == 100_001
    assert five.nodes[0].left_ms() == 100_001


@pytest.mark.parametrize("key", [Colour.RED, Misnamed("data")])
def test_keys_that_are_equal_name_one_lock(five: Network, redlock: TaskLock, key: str) -> None:
    """A member of a str enum, or another subclass of str, is equal to its data."""
    text = str.__str__(key)
    other = five.redlock(key_prefix=Colour.RED)
    assert other.key_prefix == "red"
    assert repr(other).endswith("key_prefix='red')")
    lease = redlock.acquire(key, label=key)
    with pytest.raises(LockHeld, match=text):
        redlock.acquire(text)
    assert redlock.locked(key)
    assert redlock.holder(key) == redlock.holder(text)
    assert redlock.release_owner(key, lease.owner)
    redlock.reserve(key, 30.0)
    assert redlock.drop(key)
    with redlock.lock(key):
        assert redlock.locked(text)
    assert redlock.drop_owner(key, redlock.acquire(text).owner, "somebody")
    redlock.mark_done(key, "task-1")
    with pytest.raises(AlreadyDone):
        redlock.acquire_for_task(text, unless_done=("task-1",))


# ---- the instance


@pytest.mark.parametrize(
    ("argument", "shortest", "longest"),
    [
        ("node_timeout", "> 0", LONGEST_S),
        ("max_ttl", "> 0", LONGEST_S),
        ("max_clock_skew", ">= 0", LONGEST_S),
        ("floor_ttl", "> 0", LONGEST_S),
        ("idle_timeout", "> 0", math.inf),
    ],
)
def test_each_duration_has_its_range(argument: str, shortest: str, longest: float) -> None:
    make: Callable[..., TaskLock] = partial(TaskLock, ["redis://a"])
    make(**{argument: longest})
    with pytest.raises(ConfigurationError, match=f"^{argument} must be .* seconds {shortest}, got"):
        make(**{argument: -1.0})
    for value, is_refused in ((0.0, shortest == "> 0"), (LONGEST_S + 1, longest == LONGEST_S)):
        with pytest.raises(ConfigurationError) if is_refused else nullcontext():
            make(**{argument: value})


def test_a_lock_without_connections_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^max_connections must be a whole number >= 1"):
        TaskLock(["redis://a"], max_connections=0)


@pytest.mark.parametrize(("nodes", "guard"), [(1, 0.0), (3, 65.6)])
def test_one_node_is_not_guarded_and_three_are(
    monkeypatch: pytest.MonkeyPatch, nodes: int, guard: float
) -> None:
    redlock = Network(nodes, monkeypatch).redlock(max_ttl=60.0, max_clock_skew=2.0)
    assert [node._guard.guard_s for node in redlock.nodes] == pytest.approx([guard] * nodes)


@pytest.mark.parametrize("is_on", [True, False])
def test_the_guard_can_be_chosen(five: Network, is_on: bool) -> None:
    redlock = five.redlock(restart_guard=is_on)
    assert {bool(node._guard.guard_s) for node in redlock.nodes} == {is_on}


@pytest.mark.parametrize(("options", "floor_ttl"), [({"floor_ttl": 7.0}, 7.0), ({}, 3600.0)])
def test_skew_and_floor_ttl_reach_the_nodes(
    five: Network, options: dict[str, Any], floor_ttl: float
) -> None:
    redlock = five.redlock(max_clock_skew=1.0, key_prefix="redlock", **options)
    five.nodes[0].clock_ahead = five.nodes[1].clock_ahead = five.nodes[2].clock_ahead = 10.0
    lease = redlock.acquire("k", ttl=TTL)
    assert lease.token == five.wall_us() + 9_000_000, "no further behind than that"
    redlock.release(lease)
    five.pass_(TTL + floor_ttl - 0.1)
    assert five.floors()[:3] == [lease.token + 1] * 3
    five.pass_(0.2)
    assert five.floors()[:3] == [0] * 3


class AheadClock:
    """The network's time, but a wall clock that is ahead."""

    def __init__(self, network: Network, seconds: float) -> None:
        self._network = network
        self._ahead_us = round(seconds * 1e6)

    def now(self) -> float:
        return self._network.now()

    def sleep(self, seconds: float) -> None:
        self._network.sleep(seconds)

    def wall_us(self) -> int:
        return self._network.wall_us() + self._ahead_us


@pytest.mark.parametrize("is_released", [True, False])
@pytest.mark.parametrize("skew", [1.0, 30.0])
@pytest.mark.parametrize("nodes", [1, 3])
def test_tokens_rise_across_an_idle_gap_though_clients_are_off(
    monkeypatch: pytest.MonkeyPatch, nodes: int, skew: float, is_released: bool
) -> None:
    network = Network(nodes, monkeypatch)
    settings = {"max_clock_skew": skew, "floor_ttl": 0.1, "restart_guard": False}
    ahead = network.redlock(AheadClock(network, skew), **settings)
    behind = network.redlock(AheadClock(network, -skew), **settings)
    for gap in range(1, 100):
        lease = ahead.acquire(f"k{gap}", ttl=0.5)
        if is_released:
            ahead.release(lease)
        network.pass_(gap)
        assert behind.acquire(f"k{gap}", ttl=0.5).token > lease.token, gap


# ---- locks of tasks


def test_a_task_s_lock_is_acquired_as_any_other(five: Network, redlock: TaskLock) -> None:
    def sent() -> list[tuple[str, int]]:
        sent = [(one.name, len(one.argv)) for one in five.log]
        five.log.clear()
        return sent

    redlock.acquire("k", ttl=TTL)
    usual = sent()
    lease = redlock.acquire_for_task("other", ttl=TTL, label="task-1")
    assert sent() == usual
    assert (task_of(lease.owner), publication_of(lease.owner), lease.superseded) == (
        "task-1",
        "",
        "",
    )


def test_a_task_s_wait_out_of_range_asks_nobody(five: Network, redlock: TaskLock) -> None:
    with pytest.raises(ConfigurationError, match=r"^wait must be"):
        redlock.acquire_for_task("k", wait=-1.0)
    assert five.log == []


def test_a_done_mark_leaves_no_floor(five: Network, redlock: TaskLock) -> None:
    redlock.mark_done("k", "task-1/0")
    assert five.floors() == [0] * 5


# ---- blocks of a lease


def test_a_block_that_outlasts_its_lease_says_so(five: Network, redlock: TaskLock) -> None:
    """Also where the nodes still have the lock: they keep it a little longer."""
    lease = redlock.acquire("k", ttl=TTL)
    lease.__enter__()
    five.pass_(TTL - 0.1)
    assert five.holders() == [lease.owner] * 5
    with pytest.raises(LeaseLost):
        lease.__exit__(None)


def test_an_error_of_a_block_comes_before_its_loss(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=TTL)
    lease.__enter__()
    five.pass_(TTL)
    lease.__exit__(ZeroDivisionError)
    assert lease.lost


def test_a_lease_released_in_its_block_is_not_released_again(
    five: Network, redlock: TaskLock
) -> None:
    with redlock.acquire("k") as lease:
        lease.release()
        five.log.clear()
    assert five.log == []


def test_a_lease_is_renewed_for_a_day_by_default(redlock: TaskLock) -> None:
    lease = redlock.acquire("k", renew=True)
    assert lease.hold_until == lease.acquired_at + 86_400


def test_a_lease_of_another_lock_is_extended_and_released_there(five: Network) -> None:
    """Whose nodes, or prefix, may be others."""
    one, another = five.redlock(key_prefix="one"), five.redlock(key_prefix="another")
    lease = one.acquire("k", ttl=TTL)
    five.pass_(TTL / 2)
    another.extend(lease)
    assert lease.remaining() > TTL * 0.9
    Redlock.release(another, lease)
    assert not one.locked("k")
    assert not lease.lost


# ---- locks that nobody uses any more


def test_a_lock_that_nobody_refers_to_is_collected(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the keeper's thread may refer to its parts."""
    monkeypatch.setattr(SimulatedChannel, "is_unused", lambda self, seconds: seconds <= 0)
    redlock = five.redlock(idle_timeout=60.0)
    redlock.release(redlock.acquire("k"))
    keeper, gone = redlock.keeper, weakref.ref(redlock)
    del redlock
    assert gone() is None
    keeper.tick()
    assert not keeper._has_work(), "it keeps no connection, and its thread ends"


def test_a_lock_that_is_collected_ends_its_threads(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`test_the_thread_of_a_collected_lock_ends_with_its_last_lease` says when."""
    ended: list[object] = []

    def end(thread: object) -> None:
        ended.append(thread)

    monkeypatch.setattr(Keeper, "end_when_idle", end)
    monkeypatch.setattr(Waiters, "close", end)
    redlock = five.redlock()
    threads = [redlock.keeper, redlock._waiters]
    redlock.release(redlock.acquire("k"))
    assert not ended
    del redlock
    assert ended == threads


def test_a_lock_whose_observer_refers_to_it_is_collected(five: Network) -> None:
    class Service:
        def __init__(self) -> None:
            self.lock = five.redlock(observers=[self.observe])

        def observe(self, event: Event) -> None:
            """Do nothing."""

    service = Service()
    gone = weakref.ref(service.lock)
    del service
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("idle_timeout", [60.0, math.inf])
def test_connections_of_a_lock_in_use_stay(five: Network, idle_timeout: float) -> None:
    redlock = five.redlock(idle_timeout=idle_timeout)
    redlock.release(redlock.acquire("k"))
    redlock.keeper.tick()
    assert redlock._pool.has_channels()
    assert redlock.keeper._has_work() == (idle_timeout < math.inf)


def test_a_lease_outlives_the_lock_that_nobody_refers_to(five: Network) -> None:
    redlock, seen = five.redlock(), list[Event]()
    redlock.observers.append(seen.append)
    lease = redlock.acquire("k", ttl=30.0)
    lease.backing.lock = None
    redlock.keeper.keep(lease)
    keeper, gone = redlock.keeper, weakref.ref(redlock)
    del redlock
    assert gone() is None
    five.pass_(15)
    keeper.tick()
    assert lease.remaining() > 25
    five.pass_(40)
    keeper.tick()
    assert lease.backing.is_lost
    assert [one for one in seen if isinstance(one, Lost)] == [Lost(lease, NOT_RENEWED)]
