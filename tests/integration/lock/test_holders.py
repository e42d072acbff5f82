"""Holders of any name, on real servers: none makes a lock unusable, or hides the others."""

from __future__ import annotations

import pytest

from celery_redlock.operate.listing import each_lock
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.views import read_views
from celery_redlock.redlock import ConfigurationError, LockHeld, Redlock
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import task_of
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.judges.nodes import assert_freed

HUGE = "x" * 1_200_000
IDS = pytest.mark.parametrize(
    "task_id", ["\ud800", HUGE, "\ud800" * 1000], ids=["surrogate", "huge", "both"]
)


@IDS
def test_a_task_of_any_id_is_locked_listed_and_released(
    five: Servers, new_redlock: NewRedlock, task_id: str
) -> None:
    redlock: TaskLock = new_redlock(five.urls)
    lease = redlock.acquire_for_task("k", 10, label=task_id, unless_done=(label_of(task_id),))
    other = redlock.acquire("other", 10)
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")
    assert caught.value.task_id == label_of(task_id)
    with NodeSet(five.urls, 5.0) as nodes:
        held = {lock.key: lock.task_id for lock in each_lock(nodes, "redlock")}
        assert nodes.errors == {}
    assert held == {"k": label_of(task_id), "other": task_of(other.owner)}
    lease.ensure()
    redlock.release(lease, done=label_of(task_id))
    assert_freed(five, "k")
    reserved = redlock.reserve("k", 10, label=task_id)
    assert redlock.release_owner("k", reserved.owner)
    assert_freed(five, "k")


@pytest.mark.parametrize("label", ["\ud800", HUGE], ids=["surrogate", "huge"])
def test_a_label_that_can_not_be_stored_leaves_nothing(
    five: Servers, redlock: Redlock, label: str
) -> None:
    for ask in (redlock.acquire, redlock.lock):
        with pytest.raises(ConfigurationError, match=r"^label "):
            ask("k", label=label)
    assert_freed(five, "k")
    assert not redlock.keeper._releases


def test_a_huge_foreign_value_is_one_bad_row(five: Servers, redlock: Redlock) -> None:
    lease = redlock.acquire("good", 10)
    for server in five:
        with server.client() as client:
            client.set("redlock:{bad}", HUGE)
            client.set("redlock:{worse}:floor", HUGE)
            client.set("redlock:{worse}", "by hand")
    with NodeSet(five.urls, 5.0) as nodes:
        locks = {lock.key: lock for lock in each_lock(nodes, "redlock")}
        remembered_not = {lock.key for lock in each_lock(nodes, "redlock", remembered=0)}
        [view, *_] = read_views(nodes, "redlock", "bad")
        assert nodes.errors == {}
    assert set(locks) == remembered_not == {"good", "bad", "worse"}
    assert locks["good"].owner == lease.owner
    assert "more than 1024 bytes: no owner" in locks["bad"].owner
    assert "no owner" in repr(view)
    redlock.release(lease)
