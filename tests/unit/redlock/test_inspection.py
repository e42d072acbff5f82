"""Inspection of locks and nodes, on simulated nodes."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.errors import ConfigurationError, LeaseLost, QuorumUnavailable
from celery_redlock.redlock.task_lock import TaskLock
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


# ---- whoever holds it


def test_a_holder_is_named_with_the_time_since_which(five: Network) -> None:
    lease = five.redlock().acquire("k", ttl=30.0, label="task-9")
    five.pass_(7)
    holder = five.redlock().holder("k")
    assert holder is not None
    assert (holder.label, holder.contended) == ("task-9", False)
    assert holder.hostname
    assert holder.remaining == pytest.approx(23, abs=0.1)
    assert holder.held_since == pytest.approx(lease.token / 1e6, abs=0.1)
    assert five.redlock().locked("k")


def test_a_reservation_names_no_time(five: Network) -> None:
    redlock = five.redlock()
    redlock.release(redlock.acquire("k"))
    redlock.reserve("k", 60.0, label="message")
    holder = redlock.holder("k")
    assert holder is not None
    assert (holder.label, holder.held_since) == ("message", None)


def test_a_free_lock_has_no_holder(five: Network) -> None:
    redlock = five.redlock()
    assert redlock.holder("k") is None
    assert not redlock.locked("k")
    assert not redlock.drop("k")


def test_a_dropped_lock_is_free_and_stays_so(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    assert five.redlock().drop("k")
    assert five.holders() == [None] * 5
    with pytest.raises(LeaseLost):
        lease.extend()
    assert five.holders() == [None] * 5, "its renewal brought it back"
    assert five.redlock().acquire("k").token > lease.token


def test_a_holder_without_a_majority_is_contended(five: Network, redlock: TaskLock) -> None:
    for number, node in enumerate(five.nodes[:4]):
        node.take(f"owner:task-{number % 2}@host")
    holder = redlock.holder("k")
    assert holder is not None
    assert holder.contended


@pytest.mark.parametrize("was_held", [False, True])
def test_a_dropped_reservation_is_free(five: Network, redlock: TaskLock, was_held: bool) -> None:
    if was_held:
        redlock.release(redlock.acquire("k"))
    floors = five.floors()
    redlock.reserve("k", 60.0)
    assert five.redlock().drop("k")
    assert five.holders() == [None] * 5
    assert five.floors() == floors, "nothing can bring a reservation back to life"


@pytest.mark.parametrize("verb", ["holder", "locked", "drop"])
def test_whoever_holds_an_invalid_key_is_not_asked(five: Network, verb: str) -> None:
    with pytest.raises(ConfigurationError):
        getattr(five.redlock(), verb)("")
    assert five.log == []


# ---- check


def test_nodes_that_vote_have_no_reason_not_to(five: Network, redlock: TaskLock) -> None:
    assert redlock.check() == {}
    left = {key.rpartition(":")[2] for node in five.nodes for key in node._data}
    assert left == {"floor"}, "the lock that was tried is released"


def test_each_check_tries_a_lock_of_its_own_under_the_prefix(
    five: Network, redlock: TaskLock
) -> None:
    redlock.check()
    redlock.check()
    tried = set(five.nodes[0]._data)
    assert len(tried) == 2
    assert all(key.startswith("redlock:{probe-") for key in tried)


def test_a_check_gives_a_hung_node_a_second(five: Network, redlock: TaskLock) -> None:
    five.nodes[3].hang()
    began = five.time
    assert list(redlock.check()) == ["node-3:6379"]
    assert five.time - began == pytest.approx(1.0, abs=1e-6)


def test_a_guarded_node_is_told_with_its_time(five: Network, redlock: TaskLock) -> None:
    five.nodes[3].votes_from = five.time + 60
    [(name, why)] = redlock.check().items()
    assert name == "node-3:6379"
    assert "60" in why


def test_a_full_node_is_told_as_one_that_refuses(five: Network, redlock: TaskLock) -> None:
    five.nodes[2].is_full = True
    [(name, why)] = redlock.check().items()
    assert name == "node-2:6379"
    assert why.startswith("refuses to write: ")


def test_a_node_that_is_down_is_told_with_its_error(five: Network, redlock: TaskLock) -> None:
    redlock.nodes[1].failed("connection refused")
    assert redlock.check() == {"node-1:6379": "connection refused"}


def test_a_misconfigured_node_fails_the_check(redlock: TaskLock) -> None:
    redlock.nodes[4].misconfigured = ConfigurationError("node-4:6379 is a replica")
    with pytest.raises(ConfigurationError, match="node-4:6379 is a replica"):
        redlock.check()


# ---- clocks


def test_clock_offsets_are_told_by_node(five: Network, redlock: TaskLock) -> None:
    five.nodes[1].clock_ahead = 2.0
    five.nodes[2].clock_ahead = -3.0
    five.nodes[4].is_up = False
    assert redlock.clock_offsets() == {
        "node-0:6379": pytest.approx(0, abs=1e-6),
        "node-1:6379": pytest.approx(-2),
        "node-2:6379": pytest.approx(3),
        "node-3:6379": pytest.approx(0, abs=1e-6),
    }


def test_a_clock_is_compared_with_the_middle_of_the_round(five: Network, redlock: TaskLock) -> None:
    for node in five.nodes:
        node.delay = 0.01
    assert list(redlock.clock_offsets().values()) == pytest.approx([0.0] * 5, abs=1e-5)
