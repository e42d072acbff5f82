"""The verdict on the nodes, by how many of them vote."""

from __future__ import annotations

import pytest

from celery_redlock.operate.locks import Kind
from celery_redlock.operate.overview import read_overview, verdict_on
from celery_redlock.redlock.protocol.quorum import majority
from tests.support.fakes.operated import Operated


@pytest.mark.parametrize(
    ("votes", "nodes", "level", "text"),
    [
        (5, 5, "good", "Locks work: 5 of 5 nodes vote, and 2 may fail."),
        (4, 5, "good", "Locks work: 4 of 5 nodes vote, and 1 more may fail."),
        (
            3,
            5,
            "narrow",
            "Locks work, but one more failed node stops all locks: 3 of 5 nodes vote.",
        ),
        (2, 5, "bad", "No lock can be acquired: 2 of 5 nodes vote, 3 are needed."),
        (0, 5, "bad", "No lock can be acquired: 0 of 5 nodes vote, 3 are needed."),
        (3, 3, "good", "Locks work: 3 of 3 nodes vote, and 1 may fail."),
        (
            2,
            3,
            "narrow",
            "Locks work, but one more failed node stops all locks: 2 of 3 nodes vote.",
        ),
        (1, 3, "bad", "No lock can be acquired: 1 of 3 nodes votes, 2 are needed."),
        (1, 1, "narrow", "Locks work, on one node: if it fails, all locks stop."),
        (0, 1, "bad", "No lock can be acquired: 0 of 1 nodes vote, 1 is needed."),
    ],
)
def test_the_verdict_tells_how_many_more_nodes_may_fail(
    votes: int, nodes: int, level: str, text: str
) -> None:
    verdict = verdict_on(votes, nodes, majority(nodes))
    assert (verdict.level.value, verdict.text) == (level, text)


def test_an_overview_counts_all_and_has_the_oldest_that_are_wanted(three: Operated) -> None:
    redlock = three.redlock(key_prefix="bank")
    for key in ("k0", "a:b@0:c:2026-01-01T00:00:00Z", "k2"):
        redlock.acquire(key, 30)
        three.sleep(1.0)
    redlock.reserve("waits", 30)
    for slot, ttl in (("00:00Z:missed", 900), ("02:00Z:missed", 900), ("04:00Z", 120)):
        redlock.reserve(f"%beat:bank@0:poll:2026-01-01T00:{slot}", ttl, label="no quorum")
    three[0].is_up = False
    three[1].refused["LRANGE"] = "nobody has asked for actions"
    seen = read_overview(
        three.target(key_prefix="bank"), 2, lambda lock: lock.kind is Kind.HELD, lambda: 5.0006
    )
    assert (seen.votes, seen.found, len(seen.ticks), seen.at) == (2, 3, 3, 5.0006)
    assert seen.unread == {}
    assert seen.as_json() == {
        "at": 5.001,
        "votes": 2,
        "needed": 2,
        "nodes": [status.as_json() for status in seen.statuses],
        "counts": {"held": 3, "reserved": 1, "missed": 2, "published": 1},
        "missed_ticks": [
            {
                "app": "bank", "entry": "poll", "slot": f"2026-01-01T00:{slot}:00Z",
                "replica": seen.ticks[0].replica, "why": "no quorum",
            }
            for slot in ("02", "00")
        ],
        "oldest": [lock.as_json(5.0006) for lock in seen.oldest],
        "doubt": None,
    }  # fmt: skip
    assert [lock.key for lock in seen.oldest] == ["k0", "a:b@0:c:2026-01-01T00:00:00Z"]


def test_an_overview_of_no_quorum_says_so(three: Operated) -> None:
    three[0].is_up = False
    three[1].refused["SCAN"] = "NOPERM no permissions"
    seen = read_overview(three.target(), 2)
    assert seen.doubt == (
        "1 of 3 nodes answered, 2 are needed "
        "(127.0.0.1:7000: Connection refused; 127.0.0.1:7001: NOPERM no permissions)"
    )
