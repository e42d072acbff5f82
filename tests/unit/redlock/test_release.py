"""Release of leases, done marks and drops, on simulated nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.defaults import NODE_TIMEOUT_S
from celery_redlock.redlock.errors import (
    AlreadyDone,
    ConfigurationError,
    LockHeld,
    QuorumUnavailable,
)
from celery_redlock.redlock.events import Acquired, Event, Released
from celery_redlock.redlock.keeper_thread import LOOK_S
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import drift_ms
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import RELEASE
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.transport.connection import ErrorReply
from celery_redlock.redlock.unsettled import ReleaseRequest, due_after
from tests.support.fakes.simulated_network import Network, SimulatedChannel

OTHER = "other:task-1@host"
TTL = 30.0
DRIFT = drift_ms(TTL * 1000) / 1000


def take_over(five: Network, lease: Lease, nodes: range) -> None:
    """Let somebody else be granted the lock on these nodes."""
    for node in nodes:
        five.nodes[node].take(OTHER)
        five.nodes[node].raise_floor(lease.token + 1)


# ---- release


def test_a_released_lock_is_free_on_every_node(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    redlock.release(lease)
    assert five.holders() == [None] * 5
    assert five.floors() == [lease.token + 1] * 5
    assert lease.is_released
    assert not lease.lost
    assert lease.remaining() == 0


def test_a_release_goes_to_guarded_nodes_too(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[3].votes_from = five.time + 60
    redlock.release(lease)
    assert sorted(five.asked("RELEASE")) == [0, 1, 2, 3, 4]


def test_no_vote_is_waited_for_to_release(
    redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node inside its restart guard confirms a release like the others."""
    needed: list[bool] = []

    def prepare(
        self: SimulatedChannel, patience: float | None = None, *, needs_votes: bool = True
    ) -> None:
        needed.append(needs_votes)

    monkeypatch.setattr(SimulatedChannel, "prepare", prepare)
    redlock.extend(lease)
    assert needed == [True]
    redlock.release(lease)
    redlock.mark_done(lease.key, "task-1")
    redlock._release.note_drop(lease.key, lease.owner, "somebody")
    redlock._inspection.why_dropped(lease.key, lease.owner)
    request = ReleaseRequest(lease.key, lease.owner, 0.0, lease.deadline)
    redlock.keeper._releases._make([request], 0.0)
    assert needed == [True] + [False] * 5


def test_a_release_does_not_wait_for_stragglers(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].delay = five.nodes[1].delay = 1.0
    began = five.time
    redlock.release(lease)
    assert five.time == began


def test_the_lock_alone_keeps_nothing_after_a_release(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    Redlock.release(redlock, lease)
    assert five.holders() == [None] * 5


def test_a_release_that_a_minority_confirms_says_so(
    five: Network, redlock: TaskLock, lease: Lease, seen: list[Event]
) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.release(lease)
    assert caught.value.action == "release"
    assert lease.is_released
    assert [type(event) for event in seen] == [Released]


def test_a_release_may_be_repeated(
    five: Network, redlock: TaskLock, lease: Lease, seen: list[Event]
) -> None:
    redlock.release(lease)
    second = redlock.acquire("k")
    redlock.release(lease)
    assert five.holders() == [second.owner] * 5
    assert [type(event) for event in seen] == [Released, Acquired]


def test_a_lost_lease_is_released_without_harm(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    take_over(five, lease, range(5))
    redlock.release(lease)
    assert five.holders() == [OTHER] * 5
    assert five.floors() == [lease.token + 1] * 5


def test_a_kept_lock_stands_for_the_time_given(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    redlock.release(lease, keep=4.5)
    assert five.holders() == [lease.owner] * 5
    assert {node.left_ms() for node in five.nodes} == {4500}
    with pytest.raises(LockHeld):
        redlock.acquire("k")
    five.pass_(4.5)
    redlock.acquire("k")


@pytest.mark.parametrize("keep", [-1, float("nan"), float("inf"), "1"])
def test_a_keep_out_of_range_releases_nothing(
    five: Network, redlock: TaskLock, lease: Lease, keep: float
) -> None:
    with pytest.raises(ConfigurationError, match=r"^keep must be"):
        redlock.release(lease, keep=keep)
    assert five.log == []
    assert not lease.is_released


def test_a_release_frees_what_the_lease_superseded(five: Network, redlock: TaskLock) -> None:
    reserved = redlock.reserve("k", ttl=600)
    lease = redlock.acquire_for_task("k", supersedes=reserved.owner)
    # The reservation's own grant gets there only now.
    five.nodes[4].take(reserved.owner)
    redlock.release(lease)
    assert five.holders() == [None] * 5


def test_a_release_tells_how_long_the_lock_was_held(
    five: Network, redlock: TaskLock, lease: Lease, seen: list[Event]
) -> None:
    five.pass_(3)
    redlock.release(lease)
    assert seen == [Released(lease, 3.0)]


def test_a_release_takes_the_way_of_a_grant_under_way(five: Network) -> None:
    redlock = five.redlock(node_timeout=1.0)
    five.nodes[4].delay = 0.2
    lease = redlock.acquire("k")
    five.nodes[4].delay = 0.0
    redlock.release(lease)
    channels = {one.channel for one in five.log if one.node == 4}
    assert len(channels) == 1
    five.pass_(5)
    assert five.holders() == [None] * 5


def test_a_release_waits_for_a_busy_way_up_to_a_timeout(five: Network) -> None:
    redlock = five.redlock(node_timeout=1.0)
    five.nodes[4].delay = 100.0
    lease = redlock.acquire("k")
    assert lease.backing.is_granted_late
    with redlock._pool.channel(lease.backing.channel):
        began = five.time
        redlock.release(lease)
        assert five.time - began == pytest.approx(1.0, abs=0.01)


def test_a_release_does_not_wait_for_a_way_without_debt(five: Network) -> None:
    redlock = five.redlock(node_timeout=1.0)
    lease = redlock.acquire("k")
    five.pass_(0)
    with redlock._pool.channel(lease.backing.channel):
        began = five.time
        redlock.release(lease)
        assert five.time == began


def test_a_release_takes_any_way_when_its_grant_is_answered(five: Network) -> None:
    redlock = five.redlock(node_timeout=1.0)
    five.reads_at_once = True
    lease = redlock.acquire("k")
    assert lease.backing.is_granted_late is None
    with redlock._pool.channel(lease.backing.channel):
        redlock.release(lease)
    assert five.holders() == [None] * 5


def test_a_run_s_lock_that_is_handed_over_is_not_lost(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire_for_task("k")
    five.expire()
    redlock.release(lease)
    assert not lease.backing.is_lost


@pytest.mark.parametrize("confirming", [2, 3])
def test_a_release_whose_first_replies_are_lost_is_made_again_and_no_loss(
    five: Network, redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch, confirming: int
) -> None:
    ask = SimulatedChannel.ask

    def lose_replies(self: SimulatedChannel, *args: Any) -> list[Any]:
        # Made all the same: the second request finds no lock key.
        return [Failed("the server closed the connection") for _ in ask(self, *args)]

    def renew(_: SimulatedChannel) -> bool:
        monkeypatch.setattr(SimulatedChannel, "ask", ask)
        monkeypatch.setattr(SimulatedChannel, "renew", lambda _: False)
        for node in five.nodes[confirming:]:
            monkeypatch.setattr(node, "execute", lambda _: ErrorReply("MISCONF disk is full"))
        return True

    monkeypatch.setattr(SimulatedChannel, "ask", lose_replies)
    monkeypatch.setattr(SimulatedChannel, "renew", renew)
    with nullcontext() if confirming > 2 else pytest.raises(QuorumUnavailable):
        redlock.release(lease)
    assert five.asked("RELEASE") == [*range(5), *range(5)]
    assert not lease.lost


@pytest.mark.parametrize(("down", "left"), [([], 0), ([0, 1], 0), ([0, 1, 2], 1)])
def test_a_release_is_left_to_the_keeper_without_a_majority(
    five: Network, redlock: TaskLock, lease: Lease, down: list[int], left: int
) -> None:
    for index in down:
        five.nodes[index].is_up = False
    with suppress(QuorumUnavailable):
        redlock.release(lease)
    assert len(redlock.keeper._releases) == left


@pytest.mark.parametrize(("keep", "ends_in"), [(0.0, TTL), (60.0, 60.0 + DRIFT)])
def test_the_keeper_answers_for_a_release_until_the_lock_has_expired(
    five: Network, redlock: TaskLock, lease: Lease, keep: float, ends_in: float
) -> None:
    requests: list[ReleaseRequest] = []
    redlock.keeper.register_cleanup = requests.append  # type: ignore[assignment,method-assign]
    redlock.release(lease, keep=keep)
    [request] = requests
    assert request.due == five.time + due_after(NODE_TIMEOUT_S)
    assert request.ends_at == pytest.approx(five.time + ends_in, rel=0, abs=1e-6)


def test_the_keeper_answers_for_a_drop_for_a_minute(five: Network, redlock: TaskLock) -> None:
    requests: list[ReleaseRequest] = []
    redlock.keeper.register_cleanup = requests.append  # type: ignore[assignment,method-assign]
    redlock.release_owner("k", OTHER)
    [request] = requests
    assert request.due == five.time + due_after(NODE_TIMEOUT_S)
    assert request.ends_at == five.time + 60


def test_an_interrupted_release_is_made_by_the_keeper_at_once(
    five: Network, redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(redlock._pool, "channel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        redlock.release(lease)
    redlock.keeper.tick()
    assert five.holders() == [None] * 5
    assert five.floors() == [lease.token + 1] * 5


def test_a_release_in_the_background_waits_for_connections_as_for_replies(
    redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_with: list[object] = []
    channel = redlock._keepers_pool.channel

    def watched(**options: Any) -> Any:
        asked_with.append(options.get("patience"))
        return channel(**options)

    monkeypatch.setattr(redlock._keepers_pool, "channel", watched)
    redlock.keeper.take_over(lease)
    redlock.keeper.tick()
    assert asked_with == [LOOK_S]


def keep_releasing(five: Network, redlock: TaskLock, lease: Lease) -> float:
    """Have the keeper release `lease`; return for how many seconds it does."""
    redlock.keeper.take_over(lease)
    began = five.time
    while True:
        due = redlock.keeper.tick()
        if not redlock.keeper._releases:
            return five.time - began
        five.pass_(max(0.0, due - five.time))


def test_the_keeper_releases_on_every_connected_node(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].hang()
    five.after(10.0, five.nodes[0].resume)
    assert 10.0 < keep_releasing(five, redlock, lease) < TTL - 10
    assert five.holders() == [None] * 5


def test_the_keeper_stops_releasing_when_the_lock_has_expired(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].hang()
    assert TTL <= keep_releasing(five, redlock, lease) < TTL + 10


def test_the_keeper_does_not_wait_for_a_node_that_is_down(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].is_up = five.nodes[1].is_up = False
    assert keep_releasing(five, redlock, lease) < 5
    assert five.holders()[2:] == [None] * 3


def test_the_keeper_releases_on_a_node_that_it_has_missed(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    """Its attempt to connect has failed for want of memory, or is still under way."""
    five.nodes[0].is_up, five.nodes[0].is_missed = False, True
    keep_releasing(five, redlock, lease)
    assert five.holders() == [None] * 5


def test_the_keeper_releases_until_a_majority_confirms(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    def change(is_up: bool) -> None:
        for node in five.nodes[:3]:
            node.is_up = is_up

    change(is_up=False)
    five.after(10.0, lambda: change(is_up=True))
    assert 10.0 < keep_releasing(five, redlock, lease) < TTL - 10
    assert five.holders() == [None] * 5


def test_the_keeper_waits_for_a_round_s_time_at_least(
    redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_with: list[float] = []
    channel = redlock._keepers_pool.channel

    def watched(*, patience: float, **how: Any) -> Any:
        asked_with.append(patience)
        return channel(patience=patience, **how)

    monkeypatch.setattr(redlock._keepers_pool, "channel", watched)
    request = ReleaseRequest(lease.key, lease.owner, 0.0, lease.deadline)
    assert redlock.keeper._releases._make([request], 0.0) == [True]
    assert asked_with == [NODE_TIMEOUT_S]


def test_waiters_here_are_not_told_where_nobody_listens(
    redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(redlock._waiters, "note_release", lambda *one: told.append(one))
    redlock.release(lease)
    assert told == []


def test_waiters_here_are_told_of_a_release_once(
    five: Network, redlock: TaskLock, lease: Lease, seen: list[Event]
) -> None:
    told: list[tuple[str, int]] = []
    redlock._waiters.note_release = lambda *one: told.append(one)  # type: ignore[method-assign]
    for node in five.nodes:
        node.listeners = lambda channel: 2  # type: ignore[method-assign]
    redlock.release(lease)
    assert told == [("redlock:{k}", 2)]
    assert seen == [Released(lease, 0.0)], "observers as well"


def test_what_can_not_be_released_is_named(five: Network, redlock: TaskLock, lease: Lease) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
    for attempt in (
        lambda: redlock.release(lease),
        lambda: redlock.release_owner("k", OTHER),
        lambda: redlock.mark_done("k", "task-9"),
    ):
        with pytest.raises(QuorumUnavailable) as caught:
            attempt()
        assert caught.value.key == "k"


# ---- done marks, drop


def test_a_done_mark_stops_its_own_task_only(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k")
    redlock.release(lease, done="task-9", done_ttl=50.0)
    with pytest.raises(AlreadyDone) as caught:
        redlock.acquire_for_task("k", unless_done=("task-9",))
    assert caught.value.remaining == pytest.approx(50)
    assert redlock.acquire_for_task("k", unless_done=("task-8",)).token > lease.token


def test_a_done_mark_is_left_for_an_hour_by_default(five: Network, redlock: TaskLock) -> None:
    redlock.mark_done("k", "task-9")
    five.pass_(3599.9)
    with pytest.raises(AlreadyDone):
        redlock.acquire_for_task("k", unless_done=("task-9",))
    five.pass_(0.2)
    redlock.acquire_for_task("k", unless_done=("task-9",))


def test_a_mark_frees_nobody_s_lock(five: Network, redlock: TaskLock, lease: Lease) -> None:
    redlock.mark_done("k", "task-9")
    assert five.holders() == [lease.owner] * 5
    assert five.floors() == [lease.token] * 5


@pytest.mark.parametrize("owner", ["\ufffd", "0123.\ufffd", "0" * 32 + "~:\ufffd@host"])
def test_a_lock_whose_owner_is_no_text_is_not_said_to_be_free(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """The nodes have bytes of another program, which read as this and differ from it."""
    for node in five.nodes:
        node.take(owner)
        execute = node.execute
        monkeypatch.setattr(
            node, "execute", lambda one, do=execute: 0 if RELEASE.sha in one else do(one)
        )
    drops: list[Callable[[], bool]] = [
        partial(redlock.drop, "k"),
        partial(redlock.drop_owner, "k", owner, "somebody"),
    ]
    for drop in drops:
        with pytest.raises(ConfigurationError) as caught:
            drop()
        assert str(caught.value) == (
            "cannot release 'k': another program has set 'redlock:{k}', to bytes that are not "
            "UTF-8; delete it on each node with redis-cli once its holder has ended"
        )


def test_a_holder_whose_name_looks_undecodable_is_dropped(five: Network, redlock: TaskLock) -> None:
    lease = redlock.acquire("k", label="task \ufffd")
    assert redlock.drop("k")
    assert not redlock.drop_owner("k", lease.owner, "somebody")
    redlock.acquire("k")
    assert not redlock.drop_owner("k", lease.owner, "somebody")


def test_a_reservation_is_dropped_by_its_owner(five: Network, redlock: TaskLock) -> None:
    reserved, floors = redlock.reserve("k", ttl=600), five.floors()
    assert redlock.release_owner("k", reserved.owner)
    assert five.holders() == [None] * 5
    assert five.floors() == floors, "it had no token"
    assert not redlock.release_owner("k", reserved.owner)


def test_what_stands_on_one_node_only_is_dropped_too(five: Network, redlock: TaskLock) -> None:
    five.nodes[0].take(OTHER)
    assert redlock.release_owner("k", OTHER)


def test_nobody_else_s_lock_is_dropped(five: Network, redlock: TaskLock, lease: Lease) -> None:
    assert not redlock.release_owner("k", OTHER)
    assert five.holders() == [lease.owner] * 5
