"""Listing of all locks on simulated nodes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from celery_redlock.messages import delivery
from celery_redlock.operate import listing as module
from celery_redlock.operate.listing import BATCH, each_lock, each_of
from celery_redlock.operate.locks import Kind
from celery_redlock.operate.views import column_in, read_views, reads_in_part, viewing
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy, Failed
from celery_redlock.redlock.protocol.scripts import done_key
from celery_redlock.redlock.transport import connection
from celery_redlock.redlock.transport.direct import ErrorReply
from celery_redlock.redlock.validation import KEY_BYTES, PREFIX_BYTES
from tests.support.fakes import operated
from tests.support.fakes.operated import Operated, Reporting


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
    monkeypatch.setattr(operated, "_PAGE", 10)
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


def test_no_more_keys_are_remembered_than_fit(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REMEMBERED", 7)
    fill(three)
    scan = module._Scan(three.opened(), "redlock:{*}", id)
    while scan.next_names():
        assert len(scan._seen) <= 7


Command = tuple[Any, ...]


def overhear(node: Reporting) -> list[Command]:
    """Return the list of the commands that a node gets from now on."""
    execute, heard = node.execute, []

    def note(command: Command) -> object:
        heard.append(command)
        return execute(command)

    node.execute = note  # type: ignore[method-assign]
    return heard


def test_no_command_examines_more_keys_than_a_batch_has(three: Operated) -> None:
    redlock = three.redlock()
    for number in range(BATCH + 10):
        redlock.acquire(f"bank.sync:{number}", 30)
    three[0].refused["GETRANGE"] = "NOPERM"
    heard = overhear(three[0])
    scanned: list[int] = []
    with three.opened() as nodes:
        found = each_lock(nodes, "redlock", on_scanned=scanned.append)
        assert len(list(found)) == BATCH + 10
    # Of a user's rights those under the prefix count.
    assert heard[0][:2] == ("GETRANGE", b"redlock:{*}")
    assert {command[0] for command in heard} == {"GETRANGE", "SCAN", "MGET", "PTTL"}
    values = [command for command in heard if command[0] == "MGET"]
    assert 0 < max(len(command) - 1 for command in values) <= BATCH
    scans = [command for command in heard if command[0] == "SCAN"]
    assert {command[2:] for command in scans} == {("MATCH", "redlock:{*}", "COUNT", BATCH)}
    assert scanned == [BATCH] * len(scans) * 3


def test_the_scan_waits_while_enough_names_do(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operated, "_PAGE", 10)
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "_ENOUGH", 4)
    for number in range(30):
        three[0].execute(("SET", f"redlock:{{{number:02}}}", new_owner("task")))
    heard = overhear(three[0])
    with three.opened() as nodes:
        assert len(list(each_lock(nodes, "redlock"))) == 30
    found = viewed = 0
    waiting = []
    for command in heard:
        if command[0] == "SCAN":
            waiting.append(found - viewed)
            found += 10
        viewed += command[0] == "PTTL"
    assert waiting == [0, 4, 4]


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ({"held"}, ["held a"]),
        ({"done"}, ["done a 2", "done b 3"]),
        ({"reserved", "done"}, ["done a 2", "done b 3", "reserved b"]),
    ],
)
def test_only_the_kinds_that_are_asked_for_are_listed(
    three: Operated, kinds: set[str], found: list[str]
) -> None:
    redlock = three.redlock(key_prefix="bank")
    redlock.acquire("a", 30)
    redlock.reserve("b", 30)
    redlock.mark_done("a", "task-1/0/abc")
    redlock.mark_done("b", "task-2}:done:x")
    redlock.mark_done("not[me]", "task-3")
    three[1].execute(("DEL", "bank:{a}:done:task-1/0/abc"))
    heard, scanned = overhear(three[0]), 0

    def add(keys: int) -> None:
        nonlocal scanned
        scanned += keys

    with three.opened() as nodes:
        locks = list(each_of(nodes, "bank", kinds, "[ab]", add))
    assert sorted(
        f"{lock.kind.value} {lock.key}" + f" {lock.votes}" * (lock.kind is Kind.DONE)
        for lock in locks
    ) == found  # fmt: skip
    for lock in locks:
        if lock.kind is Kind.DONE:
            assert (lock.nodes, lock.remaining) == (3, 3600.0)
            assert lock.owner == {"a": "task-1/0/abc", "b": "task-2}:done:x"}[lock.key]
    commands = [command[0] for command in heard]
    assert {*commands} == {"GETRANGE", "SCAN", "PTTL"}
    assert scanned == 3 * BATCH * commands.count("SCAN")
    assert ("GETRANGE" in commands[1:]) is (kinds != {"done"})


@pytest.mark.parametrize("kind", ["held", "done"])
@pytest.mark.parametrize("command", ["PTTL", "SCAN"])
def test_a_node_that_refuses_is_left_out_with_its_reason(
    three: Operated, kind: str, command: str
) -> None:
    redlock = three.redlock()
    redlock.acquire("k", 30)
    redlock.mark_done("k", "task-1")
    three[0].refused[command] = "NOPERM"
    with three.opened() as nodes:
        [lock] = each_of(nodes, "redlock", {kind})
        assert (lock.votes, nodes.errors) == (2, {"127.0.0.1:7000": "NOPERM"})
        three[1].refused = three[2].refused = three[0].refused
        assert list(each_of(nodes, "redlock", {kind})) == []
        assert len(nodes.errors) == 3


def test_a_key_that_is_not_text_is_shown_as_far_as_it_is(three: Operated) -> None:
    redlock = three.redlock()
    redlock.acquire("a?b", 30)
    redlock.mark_done("a?b", "task-1")
    for node in (three[0], three[1], three[2]):
        # On the wire the question mark is a byte that is no text.
        execute = node.execute

        def wired(command: Command, execute: Any = execute) -> Any:
            reply = execute(tuple(
                one.replace(b"\xff", b"?") if isinstance(one, bytes) else one for one in command
            ))  # fmt: skip
            if command[0] == "SCAN":
                return [reply[0], [name.replace(b"?", b"\xff") for name in reply[1]]]
            return reply

        node.execute = wired  # type: ignore[method-assign]
    with three.opened() as nodes:
        found = list(each_of(nodes, "redlock", {"held", "done"}))
    keys = [(lock.key, lock.votes) for lock in found]
    assert keys == [("a\N{REPLACEMENT CHARACTER}b", 3)] * 2


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
        heard = overhear(three[0])
        read_views(nodes, "bank", "k")
        assert [command[:2] for command in heard] == [
            ("GETRANGE", b"bank:{k}"), ("GETRANGE", b"bank:{k}"), ("GETRANGE", b"bank:{k}:floor"),
            ("PTTL", b"bank:{k}"),
        ]  # fmt: skip
        three[2].refused["GETRANGE"] = "NOPERM this user has no permissions"
        assert not reads_in_part(nodes, b"x")
        three[2].is_up = False
        assert reads_in_part(nodes, b"x")


def test_a_lock_that_ends_during_the_scan_is_not_listed(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operated, "_PAGE", 10)
    redlock = three.redlock()
    for key in ("ends", "stays"):
        redlock.acquire(key, 30)
        redlock.mark_done(key, "task-1")
    for node in (three[0], three[1], three[2]):
        execute = node.execute

        def end(command: Command, execute: Any = execute) -> object:
            reply = execute(command)
            if command[0] == "SCAN":
                for name in ("redlock:{ends}", "redlock:{ends}:done:task-1"):
                    execute(("DEL", name))
            return reply

        node.execute = end  # type: ignore[method-assign]
    with three.opened() as nodes:
        found = list(each_of(nodes, "redlock", {"held", "done"}))
    assert [lock.key for lock in found] == ["stays", "stays"]


def test_a_held_lock_s_view_has_the_time_that_is_left(three: Operated) -> None:
    lease = three.redlock().acquire("k", 30)
    with three.opened() as nodes:
        assert read_views(nodes, "redlock", "k") == [Busy(lease.owner, 30_000, lease.token)] * 3


def test_a_free_lock_s_view_has_its_floor_and_no_time_left(three: Operated) -> None:
    three[0].execute(("SET", "redlock:{k}:floor", "7"))
    three[1].refused["PTTL"] = "NOPERM no PTTL"
    three[2].is_up = False
    with three.opened() as nodes:
        assert read_views(nodes, "redlock", "k") == [
            Busy("", 0, 7), Failed("NOPERM no PTTL"), Failed("Connection refused")
        ]  # fmt: skip


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


def test_a_value_of_another_type_is_no_lock() -> None:
    wrong, denied = ErrorReply("WRONGTYPE Operation against a key"), ErrorReply("NOPERM")
    assert column_in([wrong, b"", -1]) == ([None], [None], [-1])
    assert column_in([wrong, denied, -1]) == Failed("NOPERM")
