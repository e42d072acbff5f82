"""The verdict on the nodes, by how many of them vote."""

from __future__ import annotations

import pytest

from celery_redlock.operate.overview import verdict_on
from celery_redlock.redlock.protocol.quorum import majority


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
