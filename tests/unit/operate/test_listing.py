"""Listing of all locks on simulated nodes."""

from __future__ import annotations

import math

import pytest

from celery_redlock.messages import delivery
from celery_redlock.operate import listing as module
from celery_redlock.operate.listing import BATCH, each_lock
from celery_redlock.operate.views import read_views, reads_in_part, viewing
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy
from celery_redlock.redlock.protocol.scripts import done_key
from celery_redlock.redlock.transport import connection
from celery_redlock.redlock.validation import KEY_BYTES, PREFIX_BYTES
from tests.support.fakes.operated import Operated


def test_a_listing_that_is_not_read_to_its_end_leaves_no_reply_behind(three: Operated) -> None:
    redlock, keys = three.redlock(), [f"bank.sync:{number}" for number in range(20)]
    owners = {key: redlock.acquire(key, 30).owner for key in keys}
    with three.opened() as nodes:
        listing = each_lock(nodes, "redlock")
        next(listing)
        listing.close()  # type: ignore[attr-defined]
        for key in keys:
            views = read_views(nodes, "redlock", key)
            assert [view.holder for view in views if isinstance(view, Busy)] == [owners[key]] * 3
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
def test_each_lock_of_any_node_is_listed_once(
    three: Operated, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", remembered)
    expected = fill(three)
    with three.opened() as nodes:
        keys = [lock.key for lock in each_lock(nodes, "redlock")]
    assert sorted(keys) == sorted(expected)


@pytest.mark.parametrize("remembered", [0, BATCH])
def test_the_locks_of_the_other_nodes_are_listed_once_if_one_fails(
    three: Operated, monkeypatch: pytest.MonkeyPatch, remembered: int
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", remembered)
    redlock, keys = three.redlock(), [f"bank.sync:{number}" for number in range(20)]
    for key in keys:
        redlock.acquire(key, 30)
    with three.opened() as nodes:
        listing = each_lock(nodes, "redlock")
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


@pytest.mark.parametrize("refused", [(), ("GETRANGE",)], ids=["in part", "whole"])
def test_a_value_too_long_for_an_owner_is_one_bad_row(
    three: Operated, refused: tuple[str, ...]
) -> None:
    redlock = three.redlock()
    owner = redlock.acquire("good", 30).owner
    for node in (three[0], three[1], three[2]):
        node.execute(("SET", "redlock:{bad}", "x" * 2000, "PX", "60000"))
        node.execute(("SET", "redlock:{bad}:floor", "x" * 2000, "PX", "60000"))
    for command in refused:
        three[1].refused[command] = "NOPERM this user has no permissions"
    with three.opened() as nodes:
        locks = {lock.key: lock for lock in each_lock(nodes, "redlock")}
        views = read_views(nodes, "redlock", "bad")
    assert locks["good"].owner == owner
    bad = locks["bad"]
    assert bad.owner == f"{'x' * 100}… (more than 1024 bytes: no owner)"
    assert (bad.votes, bad.token, bad.task_id) == (3, 0, None)
    assert [(view.holder, view.floor) for view in views if isinstance(view, Busy)] == [
        (bad.owner, 0)
    ] * 3


def test_no_more_of_a_value_is_read_than_an_owner_has(three: Operated) -> None:
    with three.opened() as nodes:
        assert reads_in_part(nodes, b"x")
        assert [command[0] for command in viewing([b"x"], in_part=True)].count("MGET") == 0
        three[2].refused["GETRANGE"] = "NOPERM this user has no permissions"
        assert not reads_in_part(nodes, b"x")


def test_a_key_that_is_no_value_is_no_lock(three: Operated) -> None:
    redlock = three.redlock()
    redlock.acquire("good", 30)
    for node in (three[0], three[1], three[2]):
        node._data["redlock:{set}"] = ({"x"}, math.inf)
    with three.opened() as nodes:
        assert [lock.key for lock in each_lock(nodes, "redlock")] == ["good"]
        assert nodes.errors == {}


def test_a_batch_of_the_longest_names_is_no_longer_than_a_reply_may_be() -> None:
    parts = "p" * PREFIX_BYTES, "k" * KEY_BYTES, "l" * delivery._LONGEST_BYTES
    longest = connection.pack((done_key(*parts),))
    assert BATCH * len(longest) < connection._LONGEST_REPLY
