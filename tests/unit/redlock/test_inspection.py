"""Inspection of locks and nodes, on simulated nodes."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.errors import ConfigurationError, QuorumUnavailable
from tests.support.fakes.simulated_network import Network

OTHER, RIVAL = f"{'0' * 32}:task-1@host", f"{'1' * 32}~:task-2@host"


def test_nobody_is_seen_where_nobody_is(five: Network) -> None:
    assert five.redlock().look("k") is None
    assert five.holders() == [None] * 5


def test_the_holder_of_a_majority_is_seen(five: Network) -> None:
    for node in five.nodes[:3]:
        node.take(OTHER, ttl=7)
    seen = five.redlock().look("k")
    assert seen is not None
    assert (seen.key, seen.holder, seen.owner) == ("k", "task-1@host", OTHER)
    assert 6 < seen.remaining <= 7
    assert not seen.contended


def test_what_is_left_over_on_a_minority_is_seen_as_that(five: Network) -> None:
    five.nodes[0].take(OTHER)
    five.nodes[1].take(RIVAL)
    five.nodes[4].take(RIVAL)
    seen = five.redlock().look("k")
    assert seen is not None
    assert seen.contended
    assert seen.owner in {OTHER, RIVAL}


def test_less_than_a_quorum_can_not_tell(five: Network) -> None:
    for node in five.nodes[:3]:
        node.hang()
    with pytest.raises(QuorumUnavailable, match=r"^cannot look at 'k'"):
        five.redlock().look("k")


# ---- check


def test_nodes_that_vote_have_no_reason_not_to(five: Network, redlock: Redlock) -> None:
    assert redlock.check() == {}
    left = {key.rpartition(":")[2] for node in five.nodes for key in node._data}
    assert left == {"floor"}, "the lock that was tried is released"


def test_a_guarded_node_is_told_with_its_time(five: Network, redlock: Redlock) -> None:
    five.nodes[3].votes_from = five.time + 60
    [(name, why)] = redlock.check().items()
    assert name == "node-3:6379"
    assert "60" in why


def test_a_full_node_is_told_as_one_that_refuses(five: Network, redlock: Redlock) -> None:
    five.nodes[2].is_full = True
    [(name, why)] = redlock.check().items()
    assert name == "node-2:6379"
    assert why.startswith("refuses to write: ")


def test_a_node_that_is_down_is_told_with_its_error(five: Network, redlock: Redlock) -> None:
    redlock.nodes[1].failed("connection refused")
    assert redlock.check() == {"node-1:6379": "connection refused"}


def test_a_misconfigured_node_fails_the_check(redlock: Redlock) -> None:
    redlock.nodes[4].misconfigured = ConfigurationError("node-4:6379 is a replica")
    with pytest.raises(ConfigurationError, match="node-4:6379 is a replica"):
        redlock.check()


# ---- clocks


def test_clock_offsets_are_told_by_node(five: Network, redlock: Redlock) -> None:
    five.nodes[1].clock_ahead = 2.0
    five.nodes[2].clock_ahead = -3.0
    five.nodes[4].is_up = False
    assert redlock.clock_offsets() == {
        "node-0:6379": pytest.approx(0, abs=1e-6),
        "node-1:6379": pytest.approx(-2),
        "node-2:6379": pytest.approx(3),
        "node-3:6379": pytest.approx(0, abs=1e-6),
    }


def test_a_clock_is_compared_with_the_middle_of_the_round(five: Network, redlock: Redlock) -> None:
    for node in five.nodes:
        node.delay = 0.01
    assert list(redlock.clock_offsets().values()) == pytest.approx([0.0] * 5, abs=1e-5)
