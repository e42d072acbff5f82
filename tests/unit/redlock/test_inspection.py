"""Inspection of locks and nodes, on simulated nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.redlock.errors import ConfigurationError, LeaseLost, QuorumUnavailable
from celery_redlock.redlock.events import Event, Lost, NodeRefuses, NodeUp
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.simulated_network import Network, SimulatedChannel

OTHER, RIVAL = f"{'0' * 32}:task-1@host", f"{'1' * 32}~:task-2@host"


def test_nobody_is_seen_where_nobody_is(five: Network) -> None:
    assert five.redlock().read_holder("k") is None
    assert five.holders() == [None] * 5


def test_the_holder_of_a_majority_is_seen(five: Network) -> None:
    for node in five.nodes[:3]:
        node.take(OTHER, ttl=7)
    seen = five.redlock().read_holder("k")
    assert seen is not None
    assert (seen.key, seen.holder, seen.owner) == ("k", "task-1@host", OTHER)
    assert 6 < seen.remaining <= 7
    assert not seen.contended


def test_what_is_left_over_on_a_minority_is_seen_as_that(five: Network) -> None:
    five.nodes[0].take(OTHER)
    five.nodes[1].take(RIVAL)
    five.nodes[4].take(RIVAL)
    seen = five.redlock().read_holder("k")
    assert seen is not None
    assert seen.contended
    assert seen.owner in {OTHER, RIVAL}


def test_less_than_a_quorum_can_not_tell(five: Network) -> None:
    for node in five.nodes[:3]:
        node.hang()
    with pytest.raises(QuorumUnavailable, match=r"^cannot look at 'k'"):
        five.redlock().read_holder("k")


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


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_lock_has_a_holder_unless_a_majority_is_free(five: Network, left: int) -> None:
    for node in five.nodes[:left]:
        node.take(OTHER)
    redlock = five.redlock()
    assert (redlock.holder("k") is not None) == redlock.locked("k") == (left == 3)
    assert redlock.read_holder("k"), "a leftover can be released"


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


@pytest.mark.parametrize(
    "release",
    [
        lambda redlock, key: redlock.drop(key),
        lambda redlock, key: redlock.drop_owner(key, OTHER, "author"),
        lambda redlock, key: redlock.release_owner(key, OTHER),
    ],
    ids=["drop", "drop_owner", "release_owner"],
)
def test_a_lock_that_is_there_is_released_however_long_its_key_is(
    five: Network, redlock: TaskLock, release: Callable[[TaskLock, str], bool]
) -> None:
    """An older version may have acquired it, and operators must get rid of it."""
    key = "k" * 1025
    for node in five.nodes:
        node.take(OTHER, key=key)
    assert release(redlock, key)
    assert redlock.read_holder(key) is None


def test_a_holder_without_a_majority_is_contended(five: Network, redlock: TaskLock) -> None:
    for number, node in enumerate(five.nodes[:4]):
        node.take(f"owner:task-{number % 2}@host")
    holder = redlock.holder("k")
    assert holder is not None
    assert holder.contended
    assert redlock.locked("k")


@pytest.mark.parametrize("held", [1, 2, 3, 5])
def test_a_lock_that_a_majority_has_released_is_not_locked(
    five: Network, redlock: TaskLock, held: int
) -> None:
    for node in five.nodes[:held]:
        node.take("owner:task-1@host")
    assert redlock.locked("k") is (held > 2)
    five.nodes[4].is_up = False
    assert redlock.locked("k") is (held > 1), "two that hold it and one that is down: nobody knows"


@pytest.mark.parametrize("was_held", [False, True])
def test_a_dropped_reservation_is_free(five: Network, redlock: TaskLock, was_held: bool) -> None:
    if was_held:
        redlock.release(redlock.acquire("k"))
    floors = five.floors()
    redlock.reserve("k", 60.0)
    assert five.redlock().drop("k")
    assert five.holders() == [None] * 5
    assert five.floors() == floors, "nothing can bring a reservation back to life"


@pytest.mark.parametrize("names", [2, 3, 5])
def test_a_drop_raises_floors_above_the_highest_under_the_lock(
    five: Network, redlock: TaskLock, names: int
) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    for node in five.nodes[names:]:
        node.expire()
    # Of fewer than a majority, the others count as well.
    five.nodes[2].raise_floor(lease.token + 100)
    assert five.redlock().drop("k")
    assert five.floors() == [lease.token + 101] * 5


@pytest.mark.parametrize("is_free", [False, True])
def test_a_drop_does_not_take_the_floor_of_another(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, is_free: bool
) -> None:
    """That of the next holder, or of an attempt that was refused and whose clock is ahead."""
    token = redlock.acquire("k", ttl=30.0).token + 100
    following = Lease("k", OTHER, token, 30_000, five.time + 29.0, five)
    five.nodes[0].expire()
    if not is_free:
        five.nodes[0].take(OTHER)
    five.nodes[0].raise_floor(token + 100 * is_free)
    dropping = five.redlock()
    drop = dropping._release.drop

    def drop_too_late(*args: Any) -> bool:
        for node in five.nodes[1:]:
            node.take(OTHER)
            node.raise_floor(token)
        return drop(*args)

    monkeypatch.setattr(dropping._release, "drop", drop_too_late)
    assert not dropping.drop("k")
    redlock.extend(following)


def test_an_owner_without_the_lock_is_not_dropped(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    assert not redlock.drop_owner("k", OTHER, "alice@ops")
    lease.extend()
    assert five.floors() == [lease.token] * 5


def test_the_rest_of_an_owner_s_lock_is_dropped(five: Network, redlock: TaskLock) -> None:
    five.nodes[0].take(OTHER)
    assert redlock.drop_owner("k", OTHER, "alice@ops")
    assert five.holders() == [None] * 5


def test_the_holder_of_a_dropped_lock_finds_its_lease_lost(
    five: Network, redlock: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    assert five.redlock().drop_owner("k", lease.owner, "alice@ops")
    with pytest.raises(LeaseLost, match="others have been granted it, or have released it"):
        lease.extend()
    with pytest.raises(LeaseLost, match="others have been granted it, or have released it"):
        lease.ensure()
    assert five.holders() == [None] * 5


def test_the_loss_of_a_dropped_lock_is_reported_with_its_reason(
    five: Network, seen: list[Event], redlock: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=30.0, renew=True)
    five.redlock().drop("k")
    five.pass_(15.0)
    redlock.keeper.tick()
    assert lease.lost
    assert seen[-1] == Lost(lease, "others have been granted it, or have released it")


@pytest.mark.parametrize("silent", [[0, 1, 2], [2, 3, 4]])
def test_a_drop_without_a_quorum_of_floors_releases_nothing(
    five: Network, redlock: TaskLock, silent: list[int]
) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    for index in silent:
        five.nodes[index].votes_from = five.time + 60
    with pytest.raises(QuorumUnavailable, match=r"^cannot release 'k'"):
        redlock.drop_owner("k", lease.owner, "alice@ops")
    assert five.holders() == [lease.owner] * 5


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
    assert redlock.check() == {"node-3:6379": "timed out after 1000 ms"}
    assert five.time - began == pytest.approx(1.05, abs=1e-6)


def test_a_late_node_is_slow_and_named_with_its_time(five: Network, redlock: TaskLock) -> None:
    five.nodes[3].delay = 0.031
    assert redlock.check() == {
        "node-3:6379": "it answers after 62 ms, and the node timeout is 50 ms"
    }
    assert [one.state for one in redlock.judge()] == [State.VOTES] * 3 + [State.SLOW, State.VOTES]


def test_a_node_that_is_late_once_votes(five: Network, redlock: TaskLock) -> None:
    five.nodes[3].hang()
    five.after(0.06, five.nodes[3].resume)
    assert redlock.check() == {}


def test_a_guarded_node_is_told_with_its_time(five: Network, redlock: TaskLock) -> None:
    five.nodes[3].votes_from = five.time + 60
    [(name, why)] = redlock.check().items()
    assert name == "node-3:6379"
    assert "60" in why


def test_a_full_node_is_told_as_one_that_refuses(
    five: Network, redlock: TaskLock, seen: list[Event]
) -> None:
    five.nodes[2].is_full = True
    [(name, why)] = redlock.check().items()
    assert name == "node-2:6379"
    assert why.startswith("refuses to write: ")
    five.nodes[2].is_full = False
    assert redlock.check() == {}
    assert seen == [
        NodeRefuses("node-2:6379", why.removeprefix("refuses to write: ")),
        NodeUp("node-2:6379", 0.0),
    ]


def test_a_check_waits_until_every_node_has_been_tried(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    five.nodes[2].is_up = False
    monkeypatch.setattr(
        SimulatedChannel, "connect_all", lambda self: redlock.nodes[2].failed("connection refused")
    )
    assert redlock.check() == {"node-2:6379": "connection refused"}


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


# --- notes of who released it ---------------------------------------------------------------------


def test_the_holder_of_a_dropped_lock_learns_who_released_it(
    five: Network, redlock: TaskLock
) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    assert redlock.why_dropped(lease) is None
    assert five.redlock().drop_owner("k", lease.owner, "alice@ops")
    why = redlock.why_dropped(lease)
    assert why
    assert re.fullmatch(r"it was released by alice@ops at \d{4}-\d\d-\d\d [\d:]{8} UTC", why)
    following = redlock.acquire("k", ttl=30.0)
    assert redlock.why_dropped(following) is None, "the note is that of the lease before"


def test_a_process_that_drops_a_lock_is_named(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    assert five.redlock().drop("k")
    assert f"released by pid-{os.getpid()}@" in str(redlock.why_dropped(lease))


def test_what_is_no_note_explains_nothing(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", ttl=30.0)
    for node in five.nodes:
        node.execute(("SET", "redlock:{k}:dropped", "not a note", "PX", 1000))
    assert redlock.why_dropped(lease) is None


def test_a_note_is_written_for_no_reservation(five: Network, redlock: TaskLock) -> None:
    reservation = redlock.reserve("k", 60.0)
    assert five.redlock().drop("k")
    assert redlock.why_dropped(reservation) is None
