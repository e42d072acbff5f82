"""Listing of all locks on simulated nodes."""

from __future__ import annotations

import pytest

from celery_redlock.operate.listing import BATCH, each_lock
from celery_redlock.operate.locks import View
from celery_redlock.operate.views import look
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.operated import Operated


def test_a_listing_that_is_not_read_to_its_end_leaves_no_reply_behind(three: Operated) -> None:
    redlock, keys = three.redlock(), [f"bank.sync:{number}" for number in range(20)]
    owners = {key: redlock.acquire(key, 30).owner for key in keys}
    with three.opened() as nodes:
        listing = each_lock(nodes, "redlock")
        next(listing)
        listing.close()  # type: ignore[attr-defined]
        for key in keys:
            views = look(nodes, "redlock", key)
            assert [view.owner for view in views if isinstance(view, View)] == [owners[key]] * 3
        assert sorted(lock.key for lock in each_lock(nodes, "redlock")) == sorted(keys)


def fill(nodes: Operated) -> dict[str, int]:
    """Set locks that only some nodes have; return the votes of each."""
    votes = {}
    for number in range(60):
        holders = [at for at in range(3) if (number >> at) % 2 or number >= 8]
        for at in holders:
            name = f"redlock:{{bank.sync:{number}}}"
            nodes[at].execute(("SET", name, new_owner("task"), "PX", "60000"))
        if holders:
            votes[f"bank.sync:{number}"] = len(holders)
    return votes


@pytest.mark.parametrize("remembered", [0, 7, BATCH])
def test_each_lock_of_any_node_is_listed_once(three: Operated, remembered: int) -> None:
    expected = fill(three)
    with three.opened() as nodes:
        keys = [lock.key for lock in each_lock(nodes, "redlock", remembered=remembered)]
    assert sorted(keys) == sorted(expected)


@pytest.mark.parametrize("remembered", [0, BATCH])
def test_the_locks_of_the_other_nodes_are_listed_once_if_one_fails(
    three: Operated, remembered: int
) -> None:
    redlock, keys = three.redlock(), [f"bank.sync:{number}" for number in range(20)]
    for key in keys:
        redlock.acquire(key, 30)
    with three.opened() as nodes:
        listing = each_lock(nodes, "redlock", remembered=remembered)
        found = [next(listing)]
        three[0].is_up = False
        found += listing
        assert list(nodes.errors.values()) == ["Connection closed"]
    assert sorted(lock.key for lock in found) == sorted(keys)
    assert {lock.votes for lock in found} <= {2, 3}
    assert {lock.nodes for lock in found} == {3}


def test_no_command_examines_more_keys_than_a_batch_has(three: Operated) -> None:
    redlock = three.redlock()
    for number in range(BATCH + 10):
        redlock.acquire(f"bank.sync:{number}", 30)
    longest = 0
    with three.opened() as nodes:
        execute = three[0].execute

        def measure(command: tuple[object, ...]) -> object:
            nonlocal longest
            longest = max(longest, len(command) - 1)
            return execute(command)  # type: ignore[arg-type]

        three[0].execute = measure  # type: ignore[method-assign]
        assert len(list(each_lock(nodes, "redlock"))) == BATCH + 10
    assert 0 < longest <= BATCH
