"""How a lock is acquired, on simulated nodes: the rules of an attempt, and of the next one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_redlock.redlock import acquisition
from celery_redlock.redlock.defaults import NODE_TIMEOUT_S
from celery_redlock.redlock.errors import (
    AlreadyDone,
    ConfigurationError,
    LockHeld,
    QuorumUnavailable,
)
from celery_redlock.redlock.events import Acquired, Event, Refused
from celery_redlock.redlock.lease import (
    is_reservation,
    new_owner,
    publication_of,
    reserved_since,
    task_of,
)
from celery_redlock.redlock.protocol.quorum import DRIFT_FACTOR, DRIFT_FLOOR_MS, Verdict
from celery_redlock.redlock.protocol.replies import Busy
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.transport.pool import Loan
from celery_redlock.redlock.unsettled import ReleaseRequest, due_after
from celery_redlock.redlock.waiting import Waiter
from tests.support.fakes.simulated_network import Network, SimulatedChannel

NewNetwork = Callable[[int], Network]
OTHER, RIVAL = "other:task-1@host", "rival:task-2@host"


@pytest.fixture
def new_network(monkeypatch: pytest.MonkeyPatch) -> NewNetwork:
    return lambda count: Network(count, monkeypatch)


@pytest.fixture
def five(new_network: NewNetwork) -> Network:
    return new_network(5)


def split(network: Network) -> None:
    """Let nobody have a majority of five nodes, nor be able to get one."""
    for node, holder in zip(network.nodes, [OTHER, OTHER, RIVAL, RIVAL], strict=False):
        node.take(holder, ttl=3600)


# ---- an attempt that succeeds


def test_a_free_lock_is_granted_by_every_node_at_once(five: Network) -> None:
    lease = five.redlock().acquire("k", ttl=20)
    assert five.holders() == [lease.owner] * 5
    assert {node.left_ms() for node in five.nodes} == {20_000}
    assert sorted(five.asked("GRANT")) == [0, 1, 2, 3, 4]
    assert {one.name for one in five.log} == {"GRANT"}


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_majority_is_enough(new_network: NewNetwork, nodes: int) -> None:
    network = new_network(nodes)
    for node in network.nodes[nodes // 2 + 1 :]:
        node.is_up = False
    lease = network.redlock().acquire("k")
    assert network.holders().count(lease.owner) == nodes // 2 + 1


@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_a_minority_never_acquires(new_network: NewNetwork, nodes: int) -> None:
    network = new_network(nodes)
    for node in network.nodes[nodes // 2 :]:
        node.is_up = False
    with pytest.raises(QuorumUnavailable):
        network.redlock().acquire("k")
    assert network.holders() == [None] * nodes


def test_no_straggler_is_waited_for(five: Network) -> None:
    five.nodes[0].delay = five.nodes[1].delay = 1.0
    began = five.time
    five.redlock().acquire("k")
    assert five.time == began


def test_the_proposed_token_is_the_wall_clock(five: Network) -> None:
    assert five.redlock().acquire("k").token == five.wall_us()


def test_the_token_is_the_highest_that_was_granted(five: Network) -> None:
    ahead = five.wall_us() + 500_000
    five.nodes[1].raise_floor(ahead)
    lease = five.redlock().acquire("k")
    # Decided by the first three replies, of which node 1's is one.
    assert lease.token == ahead + 1


def test_a_grant_that_is_not_counted_does_not_raise_the_token(five: Network) -> None:
    five.nodes[1].raise_floor(five.wall_us() + 500_000)
    five.nodes[1].delay = 1.0
    assert five.redlock().acquire("k").token == five.wall_us()


def test_only_the_nodes_behind_are_told_to_confirm(five: Network) -> None:
    five.nodes[0].raise_floor(five.wall_us() + 500_000)
    lease = five.redlock().acquire("k")
    assert sorted(five.asked("CONFIRM")) == [1, 2], "of the three that were counted"
    assert {one.argv[0] for one in five.sent("CONFIRM")} == {str(lease.token)}
    assert {one.channel for one in five.sent("CONFIRM")} == {five.log[0].channel}
    assert five.floors()[:3] == [lease.token] * 3


def test_nothing_is_confirmed_when_a_majority_has_the_token(five: Network) -> None:
    five.nodes[0].raise_floor(five.wall_us() + 500_000)
    five.nodes[1].raise_floor(five.wall_us() + 500_000)
    five.nodes[2].raise_floor(five.wall_us() + 500_000)
    five.redlock().acquire("k")
    assert five.sent("CONFIRM") == []


def test_who_is_behind_a_majority_is_left_so(five: Network) -> None:
    for node in five.nodes[:3]:
        node.raise_floor(five.wall_us() + 500_000)
    five.reads_at_once = True
    five.redlock().acquire("k")
    assert five.sent("CONFIRM") == []


def test_nodes_at_the_token_count_with_those_that_confirm(five: Network) -> None:
    for node in five.nodes[:2]:
        node.raise_floor(five.wall_us() + 500_000)
    lease = five.redlock().acquire("k")
    assert five.asked("CONFIRM") == [2]
    assert five.floors().count(lease.token) == 3


def test_no_straggler_of_a_confirmation_is_waited_for(five: Network) -> None:
    five.nodes[0].raise_floor(five.wall_us() + 500_000)
    five.nodes[1].raise_floor(five.wall_us() + 500_000)
    five.reads_at_once = True
    redlock = five.redlock()
    for node in five.nodes:
        node.delay = 0.001
    five.after(0.0015, lambda: setattr(five.nodes[4], "delay", 1.0))
    began = five.time
    redlock.acquire("k")
    assert five.asked("CONFIRM") == [2, 3, 4]
    assert five.time == pytest.approx(began + 0.004)


def test_a_token_that_a_minority_confirms_is_no_lease(five: Network) -> None:
    five.nodes[0].raise_floor(five.wall_us() + 500_000)

    for node in five.nodes:
        node.delay = 0.001
    five.after(0.0015, lambda: five.expire([1, 2, 3, 4]))
    with pytest.raises(QuorumUnavailable, match="too late"):
        five.redlock().acquire("k")
    assert sorted(five.asked("CONFIRM")) == [1, 2]
    five.pass_(1)
    assert five.holders() == [None] * 5


def test_the_deadline_counts_from_before_the_first_grant(five: Network) -> None:
    for node in five.nodes:
        node.delay = 0.01
    began = five.time
    lease = five.redlock().acquire("k", ttl=10)
    assert five.time == pytest.approx(began + 0.02)
    assert lease.acquired_at == began
    drift = 10 * DRIFT_FACTOR + DRIFT_FLOOR_MS / 1000
    assert lease.deadline == pytest.approx(began + 10 - drift)
    assert lease.remaining() == pytest.approx(10 - drift - 0.02)


def test_an_attempt_that_outlasts_its_ttl_is_no_lease(five: Network) -> None:
    for node in five.nodes:
        node.delay = 0.5
    with pytest.raises(QuorumUnavailable) as caught:
        five.redlock(node_timeout=2.0).acquire("k", ttl=1.0)
    assert (caught.value.key, caught.value.action) == ("k", "lock")
    assert set(caught.value.errors.values()) == {"its grant came, or was confirmed, too late"}
    five.pass_(2)
    assert five.holders() == [None] * 5


def test_a_confirmation_that_outlasts_the_ttl_is_no_lease(five: Network) -> None:
    five.nodes[0].raise_floor(five.wall_us() + 500_000)
    for node in five.nodes:
        node.delay = 0.3
    with pytest.raises(QuorumUnavailable, match="too late"):
        five.redlock(node_timeout=2.0).acquire("k", ttl=1.0)
    assert five.sent("CONFIRM")


def test_only_nodes_past_the_restart_guard_are_asked(five: Network) -> None:
    five.nodes[3].votes_from = five.time + 5
    five.redlock().acquire("k")
    assert sorted(five.asked("GRANT")) == [0, 1, 2, 4]


def test_acquired_says_how_long_and_how_many_rounds(five: Network) -> None:
    seen: list[Event] = []
    split(five)
    five.after(0.01, five.expire)
    began = five.time
    lease = five.redlock(observers=[seen.append]).acquire("k", wait=1)
    [acquired] = seen
    assert isinstance(acquired, Acquired)
    assert acquired.lease is lease
    assert acquired.rounds == len(five.slept) + 1
    assert acquired.elapsed == pytest.approx(five.time - began)


# ---- proposals


@pytest.mark.parametrize("is_held", [False, True], ids=["granted", "refused"])
def test_the_highest_floor_seen_raises_the_next_proposal(five: Network, is_held: bool) -> None:
    redlock, ahead = five.redlock(), five.wall_us() + 900_000
    for node in five.nodes[:3]:
        node.raise_floor(ahead, "seen")
        if is_held:
            node.take(OTHER, key="seen")
    if is_held:
        with pytest.raises(LockHeld):
            redlock.acquire("seen")
    else:
        redlock.acquire("seen")
    # By one above the floor that was seen, or above the token that was granted there.
    assert redlock.acquire("k").token == ahead + (1 if is_held else 2)


def test_a_wall_clock_past_all_seen_is_proposed(five: Network) -> None:
    redlock = five.redlock()
    redlock.acquire("seen")
    five.pass_(1)
    assert redlock.acquire("k").token == five.wall_us()


def test_a_reservation_raises_no_proposal(five: Network) -> None:
    redlock = five.redlock()
    redlock.reserve("k", ttl=60)
    assert redlock.acquire("other").token == five.wall_us()


# ---- an attempt that fails


def test_a_held_lock_is_refused_with_holder_and_remaining(five: Network) -> None:
    for node in five.nodes[:3]:
        node.take(OTHER, ttl=7)
    with pytest.raises(LockHeld) as caught:
        five.redlock().acquire("k")
    error = caught.value
    assert (error.key, error.owner, error.contended) == ("k", OTHER, False)
    assert error.holder == "task-1@host"
    assert error.remaining == pytest.approx(7)


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0])
def test_a_refusal_has_the_holder_s_age_by_any_caller_s_clock(
    five: Network, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    redlock, right = five.redlock(), five.wall_us
    redlock.acquire("k", ttl=30.0)
    five.pass_(12.5)
    monkeypatch.setattr(five, "wall_us", lambda: right() + round(skew * 1e6))
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")
    assert caught.value.age == pytest.approx(12.5)
    here = five.wall_us() / 1e6
    assert caught.value.held_since == pytest.approx(here - 12.5, rel=0, abs=0.01)


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_wrong_clock_of_the_holder_shifts_its_age_by_the_skew(
    five: Network, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    redlock, right = five.redlock(), five.wall_us
    monkeypatch.setattr(five, "wall_us", lambda: right() + round(skew * 1e6))
    redlock.acquire("k", ttl=30.0)
    five.pass_(12.5)
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")
    assert caught.value.age == pytest.approx(12.5 - math.copysign(1.0, skew))


def test_a_refusal_by_a_lock_that_was_released_meanwhile_has_no_age(five: Network) -> None:
    refusal = five.redlock()._acquisition._refusal("k", Verdict.HELD, [Busy("", 0, 7, 7)] * 5)
    assert isinstance(refusal, LockHeld)
    assert (refusal.owner, refusal.age) == (None, None)


def test_a_reservation_has_no_age(five: Network) -> None:
    redlock = five.redlock()
    redlock.reserve("k", 60.0)
    with pytest.raises(LockHeld) as caught:
        redlock.acquire("k")
    assert caught.value.age is None


def test_too_few_answers_are_unavailable_and_named(five: Network) -> None:
    five.nodes[0].hang()
    for node in five.nodes[1:3]:
        node.is_up = False
    with pytest.raises(QuorumUnavailable) as caught:
        five.redlock(node_timeout=0.25).acquire("k")
    assert (caught.value.key, caught.value.action) == ("k", "lock")
    assert caught.value.nodes == 5
    assert caught.value.errors == {
        "node-0:6379": "timed out after 250 ms",
        "node-1:6379": "not asked",
        "node-2:6379": "not asked",
    }


def test_a_failed_attempt_is_released_where_it_was_granted(five: Network) -> None:
    for node in five.nodes[:3]:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    assert sorted(five.asked("RELEASE")) == [3, 4], "and where it was refused there is nothing"
    assert five.holders() == [OTHER] * 3 + [None] * 2


def test_a_grant_under_way_is_followed_by_its_release(five: Network) -> None:
    five.nodes[4].delay = 10.0
    for node in five.nodes[:3]:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    # The way is short again; but on the same connection nothing overtakes.
    five.nodes[4].delay = 0.0
    assert five.asked("RELEASE") == [3, 4]
    assert {one.channel for one in five.log} == {five.log[0].channel}
    five.pass_(30)
    assert five.holders()[4] is None


def test_a_node_that_was_sent_no_grant_is_sent_no_release(five: Network) -> None:
    five.nodes[4].votes_from = five.time + 5
    for node in five.nodes[:3]:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    assert five.asked("GRANT") == [0, 1, 2, 3]
    assert five.asked("RELEASE") == [3]


def test_who_waits_for_guarded_nodes_sends_them_nothing(five: Network) -> None:
    for node in five.nodes:
        node.votes_from = five.time + 5
    with pytest.raises(QuorumUnavailable) as caught:
        five.redlock().acquire("k", wait=2)
    assert caught.value.guarded == 5
    assert five.slept
    assert five.log == []


def test_a_guard_that_ends_during_an_attempt_does_not_matter(five: Network) -> None:
    """The grant was not sent when the node was still inside its guard."""
    five.nodes[4].votes_from = five.time + 0.015
    for node in five.nodes:
        node.delay = 0.01
    for node in five.nodes[:3]:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock(node_timeout=1.0).acquire("k")
    assert five.nodes[4].votes_from < five.time
    assert five.asked("RELEASE") == [3]


def test_the_release_of_a_failed_attempt_raises_no_floor(five: Network) -> None:
    for node in five.nodes[:3]:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    assert five.floors()[3:] == [five.wall_us()] * 2


def test_a_struck_attempt_is_released_on_all_and_makes_no_floor(five: Network) -> None:
    """It is unknown where its grant was sent."""
    five.nodes[4].votes_from = five.time + 5

    def strike() -> None:
        raise KeyboardInterrupt

    for node in five.nodes:
        node.delay = 0.01
    five.after(0.005, strike)
    began = five.wall_us()
    with pytest.raises(KeyboardInterrupt):
        five.redlock(node_timeout=1.0).acquire("k")
    five.pass_(1)
    assert five.asked("RELEASE") == [0, 1, 2, 3, 4]
    assert five.holders() == [None] * 5
    assert five.floors() == [began] * 4 + [0]


def test_a_failed_attempt_waits_for_releases_where_granted(five: Network) -> None:
    for node in five.nodes[2:]:
        node.take(OTHER)
    for node in five.nodes:
        node.delay = 0.004
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    assert [node.holder() for node in five.nodes[:2]] == [None, None]


@pytest.mark.parametrize("strikes_after", [0.0, 0.005, 0.015, 0.025, 0.035])
def test_an_attempt_that_is_interrupted_leaves_nothing(five: Network, strikes_after: float) -> None:
    for node in five.nodes:
        node.delay = 0.01
    five.nodes[0].raise_floor(five.wall_us() + 500_000)

    def strike() -> None:
        raise KeyboardInterrupt

    five.after(strikes_after, strike)
    with pytest.raises(KeyboardInterrupt):
        five.redlock(node_timeout=1.0).acquire("k")
    five.pass_(5)
    assert five.holders() == [None] * 5


def test_refused_carries_the_error_that_is_raised(five: Network) -> None:
    seen: list[Event] = []
    for node in five.nodes:
        node.take(OTHER)
    with pytest.raises(LockHeld) as caught:
        five.redlock(observers=[seen.append]).acquire("k")
    assert seen == [Refused("k", caught.value)]


def test_without_a_quorum_of_fit_nodes_nobody_is_asked(five: Network) -> None:
    redlock = five.redlock()
    for node in redlock.nodes[2:]:
        node.misconfigured = ConfigurationError(f"{node.name} is a replica")
    with pytest.raises(ConfigurationError, match="node-2:6379 is a replica"):
        redlock.acquire("k", wait=60)
    assert five.log == []


def test_a_minority_of_unfit_nodes_is_only_down(five: Network) -> None:
    redlock = five.redlock()
    for number in (1, 2):
        redlock.nodes[number].misconfigured = ConfigurationError("it is a replica")
        five.nodes[number].is_up = False
    redlock.release(redlock.acquire("k"))


def test_a_node_that_is_down_is_waited_for_beside_unfit_ones(five: Network) -> None:
    """Only if the unfit ones are too many can nothing but another list of nodes help."""
    redlock = five.redlock()
    for number in (1, 2):
        redlock.nodes[number].misconfigured = ConfigurationError("it is a Sentinel")
        five.nodes[number].is_up = False
    five.nodes[0].is_up = False
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k", wait=1)
    five.after(3, partial(setattr, five.nodes[0], "is_up", True))
    redlock.release(redlock.acquire("k", wait=10))


# ---- connections that turn out to be dead


@pytest.fixture
def renewed(five: Network, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which the connections of a channel, all of them dead at first, were renewed."""
    times: list[float] = []
    for node in five.nodes:
        node.is_up = False

    def renew(self: SimulatedChannel) -> bool:
        for node in five.nodes:
            node.is_up = True
        times.append(five.time)
        return len(times) == 1

    monkeypatch.setattr(SimulatedChannel, "renew", renew)
    return times


def test_on_new_connections_there_is_a_new_attempt(five: Network, renewed: list[float]) -> None:
    owners: list[str] = []
    lease = five.redlock().acquire_for_task("k", on_attempt=owners.append)
    first, second = owners
    assert lease.owner == second != first
    assert [(one.name, one.owner) for one in five.log if one.node == 0] == [
        ("RELEASE", first), ("GRANT", second),
    ], "a grant may have arrived whose reply was lost"  # fmt: skip
    assert len(renewed) == 1


def test_a_dead_connection_is_renewed_once_in_an_attempt(
    five: Network, renewed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedChannel, "voters", lambda self: [])
    with pytest.raises(QuorumUnavailable):
        five.redlock().acquire("k")
    assert len(renewed) == 1


def test_an_owner_that_was_given_makes_no_second_attempt(
    five: Network, renewed: list[float]
) -> None:
    with pytest.raises(QuorumUnavailable):
        five.redlock().reserve("k", 60, owner=new_owner(is_reservation=True))
    assert renewed == []


def test_a_held_lock_is_no_reason_for_new_connections(five: Network, renewed: list[float]) -> None:
    for node in five.nodes:
        node.is_up = True
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k")
    assert renewed == []


# ---- attempt after attempt


def test_every_attempt_has_an_owner_of_its_own(five: Network) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=1)
    lease = five.redlock().acquire("k", wait=5, label="task-9")
    owners = [one.owner for one in five.sent("GRANT") if one.node == 0]
    assert len(owners) == len(set(owners)) > 2
    assert owners[-1] == lease.owner
    assert {task_of(owner) for owner in owners} == {"task-9"}


@pytest.mark.parametrize("wait", [None, 0])
def test_who_does_not_wait_asks_once(five: Network, wait: float | None) -> None:
    for node in five.nodes:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().acquire("k", wait=wait)
    assert five.slept == []
    assert len(five.sent("GRANT")) == 5


@pytest.mark.parametrize("trouble", ["held", "split", "unavailable"])
def test_nobody_waits_longer_than_asked_for(five: Network, trouble: str) -> None:
    if trouble == "split":
        split(five)
    for node in five.nodes[:3]:
        if trouble == "held":
            node.take(OTHER, ttl=3600)
        elif trouble == "unavailable":
            node.is_up = False
    began = five.time
    with pytest.raises(QuorumUnavailable if trouble == "unavailable" else LockHeld):
        five.redlock().acquire("k", wait=7)
    assert 6.5 < five.time - began < 7


def test_who_waits_for_ever_gets_it_in_the_end(five: Network) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=300)
    began = five.time
    five.redlock().acquire("k", wait=math.inf)
    assert 300 <= five.time - began < 301


def test_who_waits_gets_it_once_nodes_are_back(five: Network) -> None:
    def come_back() -> None:
        for node in five.nodes:
            node.is_up = True

    for node in five.nodes[:3]:
        node.is_up = False
    five.after(3, come_back)
    began = five.time
    five.redlock().acquire("k", wait=10)
    assert 3 <= five.time - began < 4


def test_a_split_is_asked_again_by_who_does_not_wait(five: Network) -> None:
    split(five)
    redlock = five.redlock()
    five.after(0.02, lambda: five.expire([0, 1]))
    redlock.acquire("k")
    assert five.slept


def test_a_split_that_does_not_end_is_refused_as_contended(five: Network) -> None:
    split(five)
    with pytest.raises(LockHeld) as caught:
        five.redlock().acquire("k")
    assert caught.value.contended
    assert caught.value.owner in {OTHER, RIVAL}
    assert len(five.slept) == 19, "twenty rounds"
    assert five.holders()[4] is None


def test_a_done_mark_ends_the_wait_at_once(five: Network) -> None:
    redlock = five.redlock()
    redlock.mark_done("k", "task-9")
    with pytest.raises(AlreadyDone) as caught:
        redlock.acquire_for_task("k", wait=60, unless_done=("task-9",))
    assert caught.value.key == "k"
    assert caught.value.remaining == pytest.approx(3600)
    assert five.slept == []
    assert five.holders() == [None] * 5


def test_the_done_mark_that_lasts_longest_is_told(five: Network) -> None:
    redlock = five.redlock()
    redlock.mark_done("k", "task-9")
    five.pass_(10)
    five.nodes[0].is_up = five.nodes[1].is_up = False
    redlock.mark_done("k", "task-9")
    five.nodes[0].is_up = five.nodes[1].is_up = True
    five.reads_at_once = True
    with pytest.raises(AlreadyDone) as caught:
        redlock.acquire_for_task("k", unless_done=("task-9",))
    assert caught.value.remaining == pytest.approx(3600)


# ---- the end of a wait


def test_a_round_longer_than_the_rest_of_a_wait_is_repeated(five: Network) -> None:
    for node in five.nodes[:3]:
        node.hang()
        five.after(1.2, node.resume)
    began = five.time
    five.redlock(node_timeout=1.0).acquire("k", wait=1.5)
    assert five.time == pytest.approx(began + 1.2)
    assert five.slept == [0.0], "at once"


def test_time_for_connecting_lengthens_no_pause(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name's first addresses may be black holes: its connection is there just too late."""
    for node in five.nodes[:3]:
        node.is_up = False
        five.after(3.01, partial(setattr, node, "is_up", True))
    times = [3.0]
    monkeypatch.setattr(
        SimulatedChannel, "prepare", lambda *_, **__: five.pass_(times.pop() if times else 0.0)
    )
    began = five.time
    five.redlock().acquire("k", wait=8)
    assert five.time < began + 3.5


def test_time_for_connecting_anew_lengthens_no_pause(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
        five.after(3.01, partial(setattr, node, "is_up", True))
    times = [3.0]

    def renew(_: SimulatedChannel) -> bool:
        five.pass_(times.pop() if times else 0.0)
        return False

    monkeypatch.setattr(SimulatedChannel, "renew", renew)
    began = five.time
    five.redlock().acquire("k", wait=8)
    assert five.time < began + 3.5


@pytest.mark.parametrize(
    ("trouble", "round_s"),
    # Twenty long rounds of a split may last longer than the wait.
    [*itertools.product(["held", "split", "unavailable"], [0.0004, 0.004]), ("held", 0.09)],
)
def test_the_end_of_a_wait_is_used_without_a_busy_loop(
    five: Network, trouble: str, round_s: float
) -> None:
    if trouble == "split":
        split(five)
    for node in five.nodes[:3]:
        if trouble == "held":
            node.take(OTHER, ttl=3600)
        elif trouble == "unavailable":
            node.hang()
    for node in five.nodes:
        node.delay = round_s / 2
    began = five.time
    with pytest.raises(QuorumUnavailable if trouble == "unavailable" else LockHeld):
        five.redlock(node_timeout=0.1).acquire("k", wait=7)
    attempts = [one.at - began for one in five.sent("GRANT") if one.node == 4]
    longest = 0.1 + round_s if trouble == "unavailable" else 2 * round_s
    assert 7 - longest <= attempts[-1] < 7, "no time is left for another one"
    assert len([at for at in attempts if at > 6.5]) < 20


def test_rounds_that_get_shorter_are_no_busy_loop_either(five: Network) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=3600)
        node.delay = 0.4
        five.after(0.81, partial(setattr, node, "delay", 0.0001))
    with pytest.raises(LockHeld):
        five.redlock(node_timeout=5.0).acquire("k", wait=1.0)
    assert len(five.slept) < 15


# ---- the pause


def pauses(network: Network, *, wait: float, ttl: float = 3600.0) -> list[float]:
    """The pauses of a client that waits for a lock which is held for so long."""
    for node in network.nodes:
        node.delay = 0.001
        node.take(OTHER, ttl=ttl)
    redlock = network.redlock()
    if ttl > wait:
        with pytest.raises(LockHeld):
            redlock.acquire("k", wait=wait)
    else:
        redlock.acquire("k", wait=wait)
    return network.slept


def test_pauses_are_never_twice_the_same(five: Network) -> None:
    slept = pauses(five, wait=5)
    assert len(set(slept)) == len(slept) > 10


@pytest.mark.usefixtures("longest")
def test_pauses_double_up_to_a_limit(five: Network) -> None:
    slept = pauses(five, wait=5)
    assert slept[:6] == pytest.approx([0.006, 0.010, 0.018, 0.034, 0.066, 0.130], abs=1e-5)
    assert max(slept) == pytest.approx(0.202, abs=1e-5)


# ---- reservations


def test_a_reservation_goes_without_the_script(five: Network) -> None:
    lease = five.redlock().reserve("k", ttl=86_400, label="task-9")
    assert five.holders() == [lease.owner] * 5
    assert {one.name for one in five.log} == {"SET", "GET", "PTTL"}
    assert is_reservation(lease.owner)
    assert lease.token == 0
    assert five.floors() == [0] * 5


def test_a_reservation_tells_when_it_began_and_no_lease_does(five: Network) -> None:
    redlock = five.redlock()
    reserved = redlock.reserve("k", ttl=60)
    assert reserved_since(reserved.owner) == pytest.approx(five.wall_us() / 1e6, abs=0.001)
    assert len({redlock.acquire(f"k{number}").owner[:12] for number in range(3)}) == 3


def test_a_reservation_refuses_to_wait(five: Network) -> None:
    for node in five.nodes:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        five.redlock().reserve("k", ttl=60)
    assert five.slept == []


def test_an_announced_owner_is_asked_for_once(five: Network) -> None:
    split(five)
    owner = new_owner("task-9", is_reservation=True)
    with pytest.raises(LockHeld) as caught:
        five.redlock().reserve("k", ttl=60, owner=owner)
    assert caught.value.contended
    assert [one.owner for one in five.sent("SET")] == [owner] * 5
    assert five.slept == []


def test_an_announced_owner_is_the_reservation_s(five: Network) -> None:
    owner = new_owner("task-9", is_reservation=True)
    assert five.redlock().reserve("k", ttl=60, owner=owner).owner == owner
    assert five.holders() == [owner] * 5


def test_a_reservation_is_superseded_by_who_names_it(five: Network) -> None:
    redlock = five.redlock()
    reserved = redlock.reserve("k", ttl=600)
    lease = redlock.acquire_for_task("k", supersedes=reserved.owner)
    assert lease.took_over
    assert lease.superseded == reserved.owner
    assert five.holders() == [lease.owner] * 5


def test_what_had_expired_was_not_taken_over(five: Network) -> None:
    redlock = five.redlock()
    reserved = redlock.reserve("k", ttl=1)
    five.pass_(2)
    lease = redlock.acquire_for_task("k", supersedes=reserved.owner)
    assert not lease.took_over


def test_one_node_s_word_says_that_it_was_taken_over(five: Network) -> None:
    redlock = five.redlock()
    reserved = redlock.reserve("k", ttl=600)
    five.expire([1, 2, 3, 4])
    assert redlock.acquire_for_task("k", supersedes=reserved.owner).took_over


def test_a_hand_over_stops_at_a_higher_floor(five: Network) -> None:
    redlock = five.redlock()
    lease = redlock.acquire("k")
    for node in five.nodes[:3]:
        node.raise_floor(lease.token + 5)
    with pytest.raises(LockHeld) as caught:
        redlock.reserve("k", 60, supersedes=lease.owner, highest_floor=lease.token)
    assert caught.value.owner == lease.owner
    assert five.holders() == [lease.owner] * 3 + [None] * 2


def test_a_hand_over_takes_a_token_above_the_lease_s(five: Network) -> None:
    redlock = five.redlock()
    lease = redlock.acquire("k")
    handed = redlock.reserve("k", 60, supersedes=lease.owner, highest_floor=lease.token)
    assert handed.token > lease.token
    assert five.holders() == [handed.owner] * 5


def hand_over_half(network: Network) -> tuple[str, str]:
    """Let a lock be handed over, which two of five nodes have heard so far."""
    holder, reserved = new_owner("task-1"), new_owner("task-1", is_reservation=True)
    for node, owner in zip(network.nodes, [reserved] * 2 + [holder] * 3, strict=True):
        node.take(owner, ttl=3600)
    return holder, reserved


def test_who_waits_for_a_hand_over_takes_no_node_from_it(five: Network) -> None:
    holder, reserved = hand_over_half(five)
    with pytest.raises(LockHeld) as caught:
        five.redlock().acquire_for_task("k", wait=1.0, supersedes=reserved)
    assert caught.value.owner == holder
    assert not caught.value.contended
    assert five.holders() == [reserved] * 2 + [holder] * 3


def test_a_retry_that_comes_early_takes_no_node_from_the_hand_over(five: Network) -> None:
    holder, reserved = hand_over_half(five)
    with pytest.raises(LockHeld) as caught:
        five.redlock().acquire_for_task("k", supersedes=reserved, is_successor=True)
    assert (caught.value.key, caught.value.owner) == ("k", holder)
    assert five.holders() == [reserved] * 2 + [holder] * 3


def test_an_early_retry_hears_a_slow_node_that_decides(five: Network) -> None:
    _, reserved = hand_over_half(five)
    five.expire([1])
    five.nodes[3].take(OTHER, ttl=3600)
    five.nodes[4].take(reserved)
    five.nodes[4].delay = 0.02
    lease = five.redlock().acquire_for_task("k", supersedes=reserved, is_successor=True)
    assert lease.took_over
    assert five.slept == [], "in its first round"


def test_an_early_retry_awaits_no_slow_node_that_decides_nothing(five: Network) -> None:
    holder, reserved = hand_over_half(five)
    five.nodes[1].take(holder, ttl=3600)
    five.nodes[0].delay = 0.02
    began = five.time
    with pytest.raises(LockHeld):
        five.redlock().acquire_for_task("k", supersedes=reserved, is_successor=True)
    assert five.time == began


def test_an_early_retry_that_has_run_is_found_done(five: Network) -> None:
    hand_over_half(five)
    redlock = five.redlock()
    redlock.mark_done("k", "task-1/1")
    with pytest.raises(AlreadyDone):
        redlock.acquire_for_task("k", supersedes="r", is_successor=True, unless_done=("task-1/1",))


def test_who_waits_for_a_hand_over_has_the_lock_after_it(five: Network) -> None:
    _, reserved = hand_over_half(five)
    five.after(0.5, lambda: five.nodes[2].take(reserved))
    lease = five.redlock().acquire_for_task("k", wait=60.0, supersedes=reserved)
    assert lease.took_over
    assert five.holders()[:3] == [lease.owner] * 3


def test_a_rival_does_not_stop_who_waits_for_a_hand_over(five: Network) -> None:
    # Two nodes have the reservation, two the run before it, one a lock that never goes.
    _, reserved = hand_over_half(five)
    five.nodes[4].take(RIVAL, ttl=3600)
    five.after(0.5, lambda: five.expire([2, 3]))
    lease = five.redlock().acquire_for_task("k", wait=60.0, supersedes=reserved)
    assert five.holders() == [lease.owner] * 4 + [RIVAL]


def test_a_long_split_is_ended_by_who_may_replace_a_holder(five: Network) -> None:
    reserved, left = new_owner(is_reservation=True), new_owner(is_reservation=True)
    for node, owner in zip(five.nodes, [reserved, reserved, left, left, OTHER], strict=True):
        node.take(owner, ttl=30)
    lease = five.redlock().acquire_for_task("k", wait=60.0, supersedes=reserved)
    assert five.holders() == [lease.owner] * 4 + [OTHER]


# ---- what is left of reservations


def test_a_lease_frees_what_is_left_of_a_reservation(five: Network) -> None:
    left = new_owner(is_reservation=True)
    five.nodes[0].take(left)
    lease = five.redlock().acquire("k")
    assert [(one.node, one.owner) for one in five.sent("RELEASE")] == [(0, left)]
    assert five.holders() == [None] + [lease.owner] * 4


def test_to_free_what_is_left_takes_no_time(five: Network) -> None:
    five.nodes[0].take(new_owner(is_reservation=True))
    for node in five.nodes:
        node.delay = 0.001
    began = five.time
    five.redlock().acquire("k")
    assert five.sent("RELEASE")
    assert five.time == pytest.approx(began + 0.002)


def test_a_lease_that_is_left_is_not_freed(five: Network) -> None:
    five.nodes[0].take(new_owner())
    five.redlock().acquire("k")
    assert five.sent("RELEASE") == []


def test_a_long_split_is_freed_of_old_reservations(five: Network) -> None:
    left, other = new_owner(is_reservation=True), new_owner(is_reservation=True)
    for node, owner in zip(five.nodes, [left, left, other, other], strict=False):
        node.take(owner)
    lease = five.redlock().acquire("k")
    assert len(five.slept) == 11, "it may be under way for ten rounds"
    assert five.holders().count(lease.owner) == 5


def test_who_may_replace_the_holder_does_not_queue(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=3600)
    queued: list[float] = []
    monkeypatch.setattr(Waiter, "wait_for_first_turn", lambda _, wait: queued.append(wait))
    lease = five.redlock().acquire_for_task("k", wait=60.0, supersedes=OTHER)
    assert five.holders() == [lease.owner] * 5
    assert queued == []


def test_releases_and_extensions_are_served_before_attempts(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock, served = five.redlock(), []
    lend = redlock._pool.channel

    def note(*args: Any, **how: Any) -> Loan:
        served.append(how.get("goes_first", False))
        return lend(*args, **how)

    monkeypatch.setattr(redlock._pool, "channel", note)
    lease = redlock.acquire("k")
    redlock.extend(lease)
    redlock.release(lease)
    assert served == [False, True, True]


def test_an_error_in_the_release_of_an_interrupted_attempt_hides_nothing(five: Network) -> None:
    redlock = five.redlock()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def fail(*_: object) -> None:
        raise OSError

    redlock._acquisition._grant = interrupt  # type: ignore[assignment,method-assign]
    redlock._acquisition._abandon = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")


def test_who_waits_queues_for_its_lock_and_is_called_meanwhile(
    five: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = five.redlock()
    queued: list[tuple[object, ...]] = []
    asked: list[float] = []

    class Watched(Waiter):
        def __init__(self, *args: Any) -> None:
            queued.append(args)
            super().__init__(*args)

        def has_asked(self, began: float) -> None:
            asked.append(began)
            super().has_asked(began)

    def on_wait() -> None:
        """Do nothing."""

    monkeypatch.setattr(acquisition, "Waiter", Watched)
    redlock.acquire_for_task("k", wait=1.0, on_wait=on_wait)
    assert queued == [(redlock._waiters, "redlock:{k}", on_wait)]
    assert asked == [five.time]


class Turns:
    """Stands in for a waiter that hears of releases: its turn comes when its pause is over."""

    poll_interval_s = 5.0

    def __init__(self, five: Network) -> None:
        self.five = five
        self.asked: list[float] = []
        self.waits: list[float] = []
        self.pauses: list[float] = []

    def __call__(self, *_: object) -> Turns:
        """Take the place of the class."""
        return self

    def wait_for_first_turn(self, seconds: float) -> None:
        self.first = seconds

    def has_asked(self, began: float) -> None:
        self.asked.append(began)

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.five.pass_(seconds)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.five.pass_(seconds)

    def leave(self) -> None:
        """Do nothing."""


@pytest.fixture
def turns(five: Network, monkeypatch: pytest.MonkeyPatch) -> Turns:
    turns = Turns(five)
    monkeypatch.setattr(acquisition, "Waiter", turns)
    return turns


@pytest.mark.usefixtures("longest")
def test_the_last_pause_leaves_time_for_one_more_attempt(five: Network, turns: Turns) -> None:
    for node in five.nodes:
        node.take(OTHER, ttl=3600)
        node.delay = 0.01
    began = five.time
    with pytest.raises(LockHeld):
        five.redlock().acquire("k", wait=7.0)
    took = turns.asked[1] - began - turns.waits[0]
    assert took >= 0.01
    assert turns.first == 7.0
    assert turns.waits == pytest.approx([5 + took, 2 - 4 * took])
    assert turns.asked == pytest.approx([began, began + 5 + 2 * took, began + 7 - took])
    assert five.slept == []


def test_without_a_quorum_nobody_is_waited_for_in_a_queue(five: Network, turns: Turns) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
    with pytest.raises(QuorumUnavailable):
        five.redlock().acquire("k", wait=2.0)
    assert turns.waits == []
    assert turns.pauses


# ---- what the keeper answers for


def test_the_keeper_answers_for_an_attempt_until_its_lock_has_expired(five: Network) -> None:
    redlock = five.redlock()
    requests: list[ReleaseRequest] = []
    redlock.keeper.register_cleanup = requests.append  # type: ignore[assignment,method-assign]
    redlock.keeper.settle = lambda owner: True  # type: ignore[method-assign]
    lease = redlock.acquire("k", ttl=20)
    [request] = requests
    assert (request.key, request.owner, request.token) == ("k", lease.owner, 0)
    assert request.due == five.time + due_after(NODE_TIMEOUT_S)
    assert request.ends_at == five.time + 20


def test_a_lease_that_the_keeper_has_released_is_not_given(five: Network) -> None:
    redlock = five.redlock()
    redlock.keeper.settle = lambda owner: False  # type: ignore[method-assign]
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.acquire("k")
    reason = "granted, and released again: this process stood still meanwhile"
    assert set(caught.value.errors.values()) == {reason}
    assert (caught.value.action, caught.value.key) == ("lock", "k")
    assert five.holders() == [None] * 5


def test_nothing_is_asked_without_a_thread_to_release_it(five: Network) -> None:
    redlock = five.redlock()

    def refuse(request: ReleaseRequest) -> None:
        raise RuntimeError("can't start new thread")

    redlock.keeper.register_cleanup = refuse  # type: ignore[assignment,method-assign]
    with pytest.raises(QuorumUnavailable, match="can't start new thread") as caught:
        redlock.acquire("k")
    assert (caught.value.action, caught.value.key) == ("lock", "k")
    assert five.log == []


def test_each_attempt_s_owner_has_the_publication(five: Network) -> None:
    owners: list[str] = []
    five.nodes[0].take(OTHER)
    redlock = five.redlock()
    redlock.acquire_for_task("k", publication="0123abcd", on_attempt=owners.append)
    redlock.reserve("r", 60, publication="0123abcd", on_attempt=owners.append)
    assert [publication_of(owner) for owner in owners] == ["0123abcd"] * 2


def test_a_floor_that_was_seen_once_raises_every_proposal(five: Network, redlock: TaskLock) -> None:
    highest = five.wall_us() + 900_000
    for node in five.nodes:
        node.raise_floor(highest, "first")
        node.take(OTHER, key="second")
    redlock.acquire("first")
    with pytest.raises(LockHeld):
        redlock.acquire("second")
    five.log.clear()
    redlock.acquire("third")
    assert {int(one.argv[1]) for one in five.sent("GRANT")} == {highest + 2}


@pytest.mark.parametrize(("is_dropped", "left"), [(False, 0), (True, 1)])
def test_a_failed_attempt_is_left_to_the_keeper_after_a_drop(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, is_dropped: bool, left: int
) -> None:
    """Of a connection: another one may overtake the grant on it."""
    drops = itertools.count() if is_dropped else itertools.repeat(0)
    monkeypatch.setattr(SimulatedChannel, "dropped", lambda _: next(drops))
    for node in five.nodes:
        node.take(OTHER)
    with pytest.raises(LockHeld):
        redlock.acquire("k")
    assert len(redlock.keeper._releases) == left


def test_an_attempt_that_is_struck_is_released_by_the_keeper(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = SimulatedChannel.ask
    strikes = [KeyboardInterrupt()]

    def struck(channel: SimulatedChannel, *args: Any) -> Any:
        replies = ask(channel, *args)
        if strikes:
            raise strikes.pop()
        return replies

    monkeypatch.setattr(SimulatedChannel, "ask", struck)
    with pytest.raises(KeyboardInterrupt):
        redlock.acquire("k")
    assert redlock.keeper._releases.next_at() == 0.0, "it is due at once"
