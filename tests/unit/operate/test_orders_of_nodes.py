"""Processes that name the same nodes in different orders: their locks are the same."""

from __future__ import annotations

from itertools import permutations

import pytest

from celery_redlock.operate.listing import each_lock
from celery_redlock.operate.lock_view import view_of
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.removal import removal_of, remove
from celery_redlock.operate.target import Target
from celery_redlock.redlock.errors import LeaseLost, LockHeld
from celery_redlock.redlock.protocol.replies import Busy
from tests.support.fakes.operated import Operated

Order = tuple[int, ...]
HERE: Order = (0, 1, 2)
ORDERS = [pytest.param(order, id="-".join(map(str, order))) for order in permutations(HERE)]


def urls(three: Operated, order: Order) -> list[str]:
    return [three.urls[number] for number in order]


@pytest.mark.parametrize("there", ORDERS)
@pytest.mark.parametrize("hangs", [None, 0, 1, 2], ids="node {} hangs".format)
def test_two_locks_exclude_each_other(three: Operated, there: Order, hangs: int | None) -> None:
    if hangs is not None:
        three[hangs].hang()
    one, other = three.redlock(), three.new_redlock(urls(three, there))
    lease = one.acquire("k", 30)
    with pytest.raises(LockHeld):
        other.acquire("k", 30)
    one.release(lease)
    then = other.acquire("k", 30)
    assert then.token > lease.token
    with pytest.raises(LockHeld):
        one.acquire("k", 30)
    other.release(then)
    assert one.acquire("k", 30).token > then.token


@pytest.mark.parametrize("there", ORDERS)
def test_a_reservation_is_released_or_superseded_by_another(three: Operated, there: Order) -> None:
    producer, worker = three.redlock(), three.new_redlock(urls(three, there))
    reserved = producer.reserve("k", 600, label="task-1")
    assert worker.release_owner("k", reserved.owner)
    assert three.holders() == [None] * 3
    reserved = producer.reserve("k", 600, label="task-1")
    lease = worker.acquire_for_task("k", 30, label="task-1", supersedes=reserved.owner)
    assert lease.took_over
    worker.release(lease)
    assert three.holders() == [None] * 3


@pytest.mark.parametrize("there", ORDERS)
def test_an_operator_sees_and_releases_the_lock(three: Operated, there: Order) -> None:
    holder, target = three.redlock(), Target(urls(three, there))
    lease = holder.acquire("k", 30, label="task-1")
    three[1].expire("k")
    with NodeSet(target.urls, 1.0) as nodes:
        [listed] = each_lock(nodes, target.key_prefix, "*")
        assert (listed.owner, listed.votes, listed.token) == (lease.owner, 2, lease.token)
        view = view_of(nodes, target.key_prefix, "k")
        views = zip(view.names, view.views, strict=True)
        holds = {name: one.holder for name, one in views if isinstance(one, Busy)}
        assert holds == {
            "127.0.0.1:7000": lease.owner, "127.0.0.1:7001": "", "127.0.0.1:7002": lease.owner,
        }  # fmt: skip
        removal = removal_of(target, nodes, "k", None)
        assert removal
        assert remove(target, nodes, removal[0], "alice@ops")
    holder.keeper.tick()
    with pytest.raises(LeaseLost):
        holder.extend(lease)
    assert three.holders() == [None] * 3
