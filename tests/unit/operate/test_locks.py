"""Locks by the nodes' views of them."""

from __future__ import annotations

import fnmatch
import math
from datetime import datetime, timezone

import pytest

from celery_redlock.beat.ticks import CLAIM_S
from celery_redlock.operate.locks import (
    LONGEST_OWNER,
    Execution,
    Kind,
    Lock,
    by_age,
    escaped,
    lock_in,
    lock_of,
    task_in,
)
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy, Failed

T = 1_763_800_000_000_000
# The greater one must not win for that.
MINE, OTHERS = f"{'1' * 32}:task-1@host-1", f"{'2' * 32}:task-2@host-2"
FREE = Busy("", 0, 0)
DOWN = Failed("down")


def test_a_key_that_no_node_has_is_free() -> None:
    assert lock_of("k", [FREE, FREE._replace(floor=T), DOWN]) is None
    assert lock_of("k", [DOWN]) is None


def test_a_lock_has_its_owner_s_votes_and_its_nodes_token() -> None:
    lock = lock_of(
        "bank.sync:1", [Busy(MINE, 9000, T), Busy(MINE, 8000, T - 5), Busy("", 0, T + 9)]
    )
    assert lock
    assert (lock.votes, lock.nodes, lock.has_majority, lock.token) == (2, 3, True, T)
    assert (lock.task_id, lock.host, lock.task) == ("task-1", "host-1", "bank.sync")
    assert lock.age(T / 1e6 + 5) == pytest.approx(5.0)


def test_it_expires_when_fewer_than_a_quorum_have_it() -> None:
    views = [Busy(MINE, 9000, T), Busy(MINE, 3000, T), Busy(MINE, 7000, T)]
    lock = lock_of("k", views)
    assert lock
    assert lock.remaining == 7.0
    minority = lock_of("k", [views[0], FREE, DOWN])
    assert minority
    assert (minority.remaining, minority.has_majority) == (9.0, False)


@pytest.mark.parametrize(
    ("pttls", "remaining", "expires_in"),
    [
        ((-1, -1, 9000), math.inf, "never"),
        ((9000, -1, 8000), 9.0, "9.0 s"),
        ((-1,), math.inf, "never"),
    ],
)
def test_a_lock_whose_keys_have_no_expiry_never_expires(
    pttls: tuple[int, ...], remaining: float, expires_in: str
) -> None:
    lock = lock_of("k", [Busy("x", pttl, 0) for pttl in pttls])
    assert lock
    assert (lock.remaining, lock.expires_in, lock.row(0.0).expires_in) == (
        remaining, expires_in, expires_in
    )  # fmt: skip
    assert lock.as_json(0.0)["remaining"] == (None if remaining == math.inf else remaining)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_of_two_owners_the_one_with_more_nodes_counts(first: int) -> None:
    views = [Busy(MINE, 9000, T), Busy(MINE, 9000, T), Busy(MINE, 9000, T)]
    views[first] = Busy(OTHERS, 99000, T + 7)
    lock = lock_of("k", views)
    assert lock
    assert (lock.owner, lock.votes, lock.token) == (MINE, 2, T)


@pytest.mark.parametrize("value", ["5b2c1f0e", "a:5b2c1f0e", "a@5b2c1f0e"])
def test_the_value_of_another_client_is_not_shown(value: str) -> None:
    lock = lock_of("k", [Busy(value, 1000, 0)])
    assert lock
    assert lock.holder() == "-"
    assert "5b2c1f0e" not in f"{lock} {lock.row(0.0)} {lock.as_json(0.0)}"


@pytest.mark.parametrize(
    ("key", "is_reservation", "kind"),
    [
        ("bank.sync:1", False, Kind.HELD),
        ("bank.sync:1", True, Kind.RESERVED),
        ("bank.sync:1%next", True, Kind.PENDING),
        ("%beat:bank@0123:nightly:2026-01-01T00:00:00Z", True, Kind.CLAIM),
        ("%beat:bank@0123:nightly:2026-01-01T00:00:00Z:missed", True, Kind.MISSED),
    ],
)
def test_the_kind_follows_from_key_and_owner(key: str, *, is_reservation: bool, kind: Kind) -> None:
    owner = new_owner("t", is_reservation=is_reservation)
    lock = lock_of(key, [Busy(owner, 1000, T)])
    assert lock
    assert lock.kind is kind
    assert (lock.token == 0) is is_reservation


def test_a_claim_that_outlasts_its_publishing_is_a_mark() -> None:
    claim = [Busy(new_owner("id", is_reservation=True), round(CLAIM_S * 1000), 0)]
    mark = [Busy(claim[0].holder, claim[0].remaining_ms + 1, 0)]
    kinds = [lock.kind for one in (claim, mark) if (lock := lock_of("%beat:a@0:e:s", one))]
    assert kinds == [Kind.CLAIM, Kind.PUBLISHED]


def lock_since(seconds: float, *, is_reservation: bool) -> Lock:
    since_us = round(seconds * 1e6)
    owner = new_owner("t", is_reservation=True, since_us=since_us) if is_reservation else MINE
    lock = lock_of("k", [Busy(owner, 1000, since_us)])
    assert lock
    return lock


def test_a_reservation_has_an_age_though_no_token() -> None:
    lock = lock_since(T / 1e6, is_reservation=True)
    assert lock.token == 0
    assert lock.age(T / 1e6 + 5) == pytest.approx(5.0)
    assert lock.age(T / 1e6 - 5) == 0.0
    assert lock.began == pytest.approx(T / 1e6)
    shown = lock.as_json(T / 1e6 + 5)
    began = datetime.fromtimestamp(T / 1e6, timezone.utc)
    assert (shown["age"], shown["since"], shown["token"]) == (5.0, began.isoformat(), None)


def test_leases_come_first_and_the_longest_held_of_each() -> None:
    start = T / 1e6
    leases = [
        lock_since(start + 1, is_reservation=False),
        lock_since(start + 3, is_reservation=False),
    ]
    reserved = [lock_since(start, is_reservation=True), lock_since(start + 2, is_reservation=True)]
    unknown = lock_of("k", [Busy(new_owner("t", is_reservation=True), 1000, T)])
    assert unknown
    mixed = [unknown, *reserved[::-1], *leases[::-1]]
    assert sorted(mixed, key=by_age) == [*leases, *reserved, unknown]


def test_a_lock_is_told_as_text_and_as_values() -> None:
    lock = lock_of("bank.sync:1", [Busy(MINE, 9000, T), Busy(MINE, 8001, T), FREE])
    assert lock
    now = T / 1e6 + 5.0006
    told = "held", "5.0 s", "8.0 s", "2/3", "task-1@host-1"
    assert lock.row(now) == (*told, "-", "bank.sync:1", "-")
    values = {
        "key": "bank.sync:1", "kind": "held", "task": "bank.sync", "task_id": "task-1",
        "host": "host-1", "worker": None, "pid": None, "arguments": None, "id": lock.id,
        "since": "2025-11-22T08:26:40+00:00", "age": 5.001, "remaining": 8.001, "token": T,
        "votes": 2, "nodes": 3,
    }  # fmt: skip
    assert lock.as_json(now) == values
    lock.execution = Execution("celery@vm", None, None)
    assert lock.row(now) == (*told, "celery@vm", "bank.sync:1", "-")
    lock.execution = Execution("celery@vm", 7, "(1,)")
    assert lock.row(now) == (*told, "celery@vm (pid 7)", "bank.sync:1", "(1,)")
    run = {"worker": "celery@vm", "pid": 7, "arguments": "(1,)"}
    assert lock.as_json(now) == values | run


@pytest.mark.parametrize(
    ("owner", "kind", "holder"),
    [
        (MINE, Kind.HELD, "task-1@host-1"),
        ("0:@x", Kind.HELD, "nobody@x"),
        ("x", Kind.HELD, "nobody"),
        ("task-1/0/abc", Kind.DONE, "task-1"),
        ("", Kind.DONE, "nobody"),
    ],
)
def test_the_holder_is_named_as_far_as_the_owner_tells(owner: str, kind: Kind, holder: str) -> None:
    lock = Lock("k", kind, owner, 3, 3, 1.0)
    assert lock.holder("nobody") == holder
    assert lock.holder() == lock.row(1.0).holder == holder.replace("nobody", "-")


@pytest.mark.parametrize(
    ("raw", "owner"),
    [
        (b"a\xffb", "a\N{REPLACEMENT CHARACTER}b"),
        (b"x" * LONGEST_OWNER, "x" * 1024),
        (b"x" * 1025, f"{'x' * 100}\N{HORIZONTAL ELLIPSIS} (more than 1024 bytes: no owner)"),
    ],
)
def test_a_value_that_no_lock_sets_is_shown_as_far_as_it_can_be(raw: bytes, owner: str) -> None:
    lock = lock_in("k", [None, raw, raw], [None] * 3, [-2, 1000, 1000], 3)
    assert lock
    assert (lock.owner, lock.token, lock.votes) == (owner, 0, 2)


@pytest.mark.parametrize("floors", [(T, T, T + 2), (T + 2, T, T), (T, T + 2, 0)])
def test_of_floors_that_differ_the_highest_is_the_token(floors: tuple[int, int, int]) -> None:
    lock = lock_of("k", [Busy(MINE, 9000, floor) for floor in floors])
    assert lock
    assert lock.token == T + 2


def test_the_highest_token_is_valid() -> None:
    lock = lock_of("k", [Busy(MINE, 1000, 2**53)])
    assert lock
    assert lock.token == 2**53


@pytest.mark.parametrize("floor", [-1, 2**53 + 1])
def test_an_invalid_floor_is_no_token(floor: int) -> None:
    lock = lock_of("k", [Busy(MINE, 1000, floor)])
    assert lock
    assert lock.token == 0
    assert lock.age(1.0) is None
    assert lock.as_json(1.0)["since"] is None


def test_an_owner_is_not_shown() -> None:
    lock = lock_of("k", [Busy(MINE, 1000, T)])
    assert lock
    nonce = MINE.partition(":")[0]
    assert nonce not in repr(lock) + str(lock.as_json(1.0))
    assert lock.id not in MINE


@pytest.mark.parametrize(
    ("key", "task"),
    [
        ("bank.sync:42", "bank.sync"),
        ("bank.sync", "bank.sync"),
        ("a%3Ab:x", "a:b"),
        ("x", "x"),
        ("%beat:bank@0123:nightly:2026-01-01T00:00:00Z", "bank@0123"),
    ],
)
def test_the_task_is_what_is_before_the_first_colon(key: str, task: str) -> None:
    assert task_in(key) == task


def test_an_escaped_text_matches_only_itself() -> None:
    assert escaped("a*b?[c]\\^") == r"a\*b\?\[c\]\\\^"
    assert fnmatch.fnmatchcase("redlock:{", escaped("redlock:{"))
