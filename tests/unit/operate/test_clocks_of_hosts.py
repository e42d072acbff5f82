"""Processes on hosts whose clocks differ: what must hold of any two, and of the nodes.

The date of a host is off by up to a minute, and each was booted at another time. The nodes are
right. What a process is allowed to be wrong about is how long ago something began, never whether.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from celery import Celery

from celery_redlock.config import app_lock
from celery_redlock.config.options import Lifetime
from celery_redlock.messages.reservation import pending_slot_key
from celery_redlock.operate import target as targets
from celery_redlock.operate.listing import each_lock
from celery_redlock.operate.lock_view import view_of
from celery_redlock.operate.locks import Lock
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.removal import removal_of, remove
from celery_redlock.operate.target import Target
from celery_redlock.redlock.errors import LeaseLost, LockHeld
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.fake_clock import OtherHostsClock
from tests.support.fakes.fleet import PERIOD, Fleet
from tests.support.fakes.operated import Operated

AHEAD_S = (-60, -5, 0, 5, 60)
LIFETIMES = [pytest.param(one, id=one.value) for one in Lifetime]


def pairs(one: str, other: str) -> Iterable[object]:
    """Return each ordered pair of clocks: by how much both are ahead of the nodes, seconds."""
    return [
        pytest.param(here, there, id=f"{one} {here:+d} s, {other} {there:+d} s")
        for here, there in product(AHEAD_S, repeat=2)
    ]


def on_host(three: Operated, ahead: float) -> TaskLock:
    """Return the lock of a process on a host whose clock is ahead."""
    return three.new_redlock(three.urls, OtherHostsClock(three, ahead))


def now_of(three: Operated, ahead: float) -> float:
    """Return the date on such a host, seconds since the epoch."""
    return OtherHostsClock(three, ahead).wall_us() / 1e6


@pytest.mark.parametrize("ending", ["released", "expired", "dropped"])
@pytest.mark.parametrize(("here", "there"), pairs("first", "second"))
def test_locks_exclude_each_other_and_tokens_grow(
    three: Operated, here: float, there: float, ending: str
) -> None:
    tokens: list[int] = []
    for turn in range(6):
        # New ones, which have seen no token yet.
        holder, other = on_host(three, here), on_host(three, there)
        if turn % 2:
            holder, other = other, holder
        lease = holder.acquire("k", 30)
        tokens.append(lease.token)
        with pytest.raises(LockHeld) as refused:
            other.acquire("k", 30)
        assert 29 < refused.value.remaining <= 30
        assert (refused.value.age or 0.0) >= 0.0
        holder.extend(lease)
        if ending == "released":
            holder.release(lease)
        elif ending == "dropped":
            assert other.drop("k")
        else:
            three.pass_(31.0)
            assert lease.lost
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(("producer", "worker"), pairs("producer", "worker"))
@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_a_run_takes_up_its_reservation_and_frees_the_key(
    fleet: Fleet, three: Operated, lifetime: Lifetime, producer: float, worker: float
) -> None:
    publishing, running = on_host(three, producer), on_host(three, worker)
    use(fleet, publishing)
    told = fleet.call(lifetime)
    if lifetime.reserves_at_publish:
        assert fleet.call(lifetime) == told
    three.pass_(100.0)  # in the queue
    use(fleet, running)
    fleet.take(lifetime)
    assert fleet.runs == [told]
    is_held = [bool(three.holders(key)[0]) for key in ("t", pending_slot_key("t"))]
    assert is_held == [lifetime.is_throttle, False]


@pytest.mark.parametrize(("producer", "worker"), pairs("producer", "worker"))
def test_a_period_lasts_its_period(
    fleet: Fleet, three: Operated, producer: float, worker: float
) -> None:
    publishing, running = on_host(three, producer), on_host(three, worker)
    use(fleet, publishing)
    first = fleet.call(Lifetime.UNTIL_EXPIRED)
    three.pass_(100.0)
    use(fleet, running)
    fleet.take(Lifetime.UNTIL_EXPIRED)
    three.pass_(PERIOD - 101.0)
    for process in (publishing, running):
        use(fleet, process)
        assert fleet.call(Lifetime.UNTIL_EXPIRED) == first
    three.pass_(1.5)
    assert fleet.call(Lifetime.UNTIL_EXPIRED) != first


@pytest.mark.parametrize("by", ["release", "drop"])
@pytest.mark.parametrize(("worker", "operator"), pairs("worker", "operator"))
def test_what_an_operator_releases_no_renewal_brings_back(
    three: Operated, monkeypatch: pytest.MonkeyPatch, worker: float, operator: float, by: str
) -> None:
    holder, here = on_host(three, worker), on_host(three, operator)
    lease = holder.acquire("k", 30, label="task-1")
    holder.extend(lease)
    if by == "drop":
        assert here.drop("k")
    else:
        monkeypatch.setattr(targets, "TaskLock", lambda *_, **__: here)
        release(three, "k")
    with pytest.raises(LeaseLost):
        holder.extend(lease)
    assert three.holders() == [None] * 3
    assert "it was released by" in str(holder.why_dropped(lease))
    assert holder.acquire("k", 30).token > lease.token


@pytest.mark.parametrize("kind", ["lease", "reservation", "period"])
@pytest.mark.parametrize(("holder", "operator"), pairs("holder", "operator"))
def test_an_age_is_never_negative(
    three: Operated, holder: float, operator: float, kind: str
) -> None:
    there, here = on_host(three, holder), on_host(three, operator)
    if kind == "lease":
        there.acquire("k", 30, label="task-1")
    else:
        there.reserve("k", 30, label="task-1", is_period=kind == "period")
    three.pass_(2.0)
    for lock in (listed(three), shown(three)):
        age = lock.age(now_of(three, operator))
        wrong_by = abs(operator - holder) if kind != "lease" else abs(operator) + 1
        assert age is not None
        assert 0.0 <= age <= 2.1 + wrong_by
        assert lock.as_json(now_of(three, operator))["age"] == pytest.approx(age, abs=0.001)
        assert 27 < lock.remaining <= 28
    held = here.read_holder("k")
    assert held
    # A reservation's floor is that of an earlier lease, and it tells no client when it began.
    assert (held.age is None) is (kind != "lease")
    assert (held.age or 0.0) >= 0.0


@pytest.mark.parametrize("by", ["release", "drop"])
@pytest.mark.parametrize(("producer", "operator"), pairs("producer", "operator"))
def test_an_operator_releases_what_a_message_has_reserved(
    three: Operated, monkeypatch: pytest.MonkeyPatch,
    producer: float, operator: float, by: str,
) -> None:  # fmt: skip
    there, here = on_host(three, producer), on_host(three, operator)
    monkeypatch.setattr(targets, "TaskLock", lambda *_, **__: here)
    for is_period in (False, True):
        there.reserve("k", 3600, label="task-1", is_period=is_period)
        if by == "drop":
            assert here.drop("k")
        else:
            release(three, "k")
        assert three.holders() == [None] * 3


def use(fleet: Fleet, redlock: TaskLock) -> None:
    """Let the fleet's task be that of another process from now on."""
    app: Celery = fleet.task.app
    app_lock._redlocks[app] = redlock


def listed(three: Operated) -> Lock:
    with NodeSet(three.urls, 1.0) as nodes:
        [lock] = each_lock(nodes, three.target().key_prefix, "*")
        return lock


def shown(three: Operated) -> Lock:
    with NodeSet(three.urls, 1.0) as nodes:
        lock = view_of(nodes, three.target().key_prefix, "k").lock
        assert lock
        return lock


def release(three: Operated, key: str) -> None:
    target: Target = three.target()
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(target, nodes, key, None)
        assert removal
        assert remove(target, nodes, removal[0], "alice@ops")
