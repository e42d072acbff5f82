"""Extension of leases, on simulated nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from celery_redlock.redlock import extension
from celery_redlock.redlock.errors import (
    ConfigurationError,
    LeaseLost,
    QuorumUnavailable,
)
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import validity_ms
from celery_redlock.redlock.protocol.replies import Superseded
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.simulated_network import Network, SimulatedChannel

OTHER = "other:task-1@host"
TTL = 30.0
WAITS = "restarted or replaced lately, votes in "
VALIDITY = validity_ms(TTL * 1000, 0) / 1000


def take_over(five: Network, lease: Lease, nodes: range) -> None:
    """Let somebody else be granted the lock on these nodes."""
    for node in nodes:
        five.nodes[node].take(OTHER)
        five.nodes[node].raise_floor(lease.token + 1)


# ---- extend


def test_an_extension_renews_the_key_on_every_node(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(20)
    redlock.extend(lease)
    assert sorted(five.asked("EXTEND")) == [0, 1, 2, 3, 4]
    five.pass_(0)
    assert {node.left_ms() for node in five.nodes} == {30_000}


def test_an_extension_s_deadline_counts_from_its_start(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    for node in five.nodes:
        node.delay = 0.01
    five.pass_(10)
    began = five.time
    redlock.extend(lease)
    assert five.time > began
    assert lease.deadline == pytest.approx(began + VALIDITY)


def test_an_extension_never_shortens_a_lease(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    lease.deadline = later = five.time + 50
    redlock.extend(lease)
    assert lease.deadline == later


def test_an_extension_keeps_token_and_owner(five: Network, redlock: TaskLock, lease: Lease) -> None:
    token, owner = lease.token, lease.owner
    for _ in range(3):
        five.pass_(20)
        redlock.extend(lease)
    assert (lease.token, lease.owner) == (token, owner)
    assert five.holders() == [owner] * 5
    assert five.floors() == [token] * 5


def test_a_minority_does_not_extend(five: Network, redlock: TaskLock, lease: Lease) -> None:
    deadline = lease.deadline
    for node in five.nodes[:3]:
        node.is_up = False
    five.pass_(1)
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.extend(lease)
    assert caught.value.action == "extend"
    assert set(caught.value.errors) == {"node-0:6379", "node-1:6379", "node-2:6379"}
    assert lease.deadline == deadline
    assert not lease.lost, "until then it stands"


def test_healed_nodes_do_not_count_at_first(five: Network, redlock: TaskLock, lease: Lease) -> None:
    for node in five.nodes[:3]:
        node.forget()
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.extend(lease)
    assert set(caught.value.errors.values()) == {"it had lost the key"}
    assert five.holders() == [lease.owner] * 5
    redlock.extend(lease)


def test_a_lease_that_a_majority_moved_on_from_is_lost(
    five: Network, redlock: TaskLock, lease: Lease, seen: list[Event]
) -> None:
    take_over(five, lease, range(3))
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert lease.lost
    assert lease.remaining() == 0
    redlock.keeper.tick()
    assert [type(event) for event in seen] == [Lost]


def test_a_lease_that_a_minority_moved_on_from_is_extended(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    take_over(five, lease, range(2))
    redlock.extend(lease)
    assert not lease.lost


def test_a_lost_lease_stays_lost_whatever_the_nodes_say(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    take_over(five, lease, range(3))
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    for node in five.nodes:
        node.forget()
        node.take(lease.owner)
    five.log.clear()
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert five.log == [], "it is not even asked for"
    assert lease.lost


def test_a_lease_seen_past_its_deadline_is_lost_for_good(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.pass_(TTL)
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert five.log == [], "it would be held against others for another ttl"
    lease.deadline = five.time + 60
    assert lease.lost
    assert lease.remaining() == 0


def test_an_extension_that_outlasts_the_lease_revives_nothing(five: Network) -> None:
    redlock = five.redlock(node_timeout=60.0)
    lease = redlock.acquire("k", ttl=TTL)
    five.pass_(VALIDITY - 0.01)
    deadline = lease.deadline
    for node in five.nodes:
        node.delay = 0.01
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert lease.deadline == deadline
    assert lease.lost


def test_a_released_lease_is_not_extended(five: Network, redlock: TaskLock, lease: Lease) -> None:
    redlock.release(lease)
    five.log.clear()
    with pytest.raises(LeaseLost, match="it was released"):
        redlock.extend(lease)
    assert five.log == []


def test_a_reservation_is_not_extended(five: Network, redlock: TaskLock) -> None:
    reserved = redlock.reserve("k", ttl=60)
    with pytest.raises(ConfigurationError, match="never renewed"):
        redlock.extend(reserved)
    assert five.sent("EXTEND") == []


def test_each_of_many_leases_has_its_own_outcome(five: Network, redlock: TaskLock) -> None:
    leases = [redlock.acquire(f"k{number}") for number in range(600)]
    five.log.clear()
    redlock.release(leases[1])
    for node in five.nodes:
        node.take(OTHER, key="k400")
        node.raise_floor(leases[400].token + 1, key="k400")
    five.pass_(5)
    outcomes = redlock.extend_all(leases)
    assert {number for number, why in enumerate(outcomes) if why} == {1, 400}
    assert [type(outcomes[1]), type(outcomes[400])] == [LeaseLost, LeaseLost]
    renewed = [lease for lease in leases if lease not in (leases[1], leases[400])]
    assert min(lease.deadline for lease in renewed) == pytest.approx(five.time + VALIDITY)
    assert len(five.sent("EXTEND")) == 599 * 5


def test_leases_beyond_a_batch_are_extended_too(
    five: Network, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "BATCH", 2)
    leases = [redlock.acquire(f"k{number}") for number in range(5)]
    redlock.release(leases[4])
    five.pass_(5)
    outcomes = redlock.extend_all(leases)
    assert outcomes[:4] == [None] * 4
    assert isinstance(outcomes[4], LeaseLost)
    assert {lease.deadline for lease in leases[:4]} == {five.time + VALIDITY}


def test_each_of_many_leases_counts_from_its_own_start(five: Network, redlock: TaskLock) -> None:
    leases = [redlock.acquire(f"k{number}") for number in range(600)]
    for node in five.nodes:
        node.delay = 0.01
    five.log.clear()
    assert redlock.extend_all(leases) == [None] * 600
    asked_at = {one.owner: one.at for one in five.sent("EXTEND")}
    for lease in leases:
        assert lease.deadline == pytest.approx(asked_at[lease.owner] + VALIDITY)


def test_an_extension_goes_to_guarded_nodes_too(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[3].votes_from = five.time + 60
    redlock.extend(lease)
    assert sorted(five.asked("EXTEND")) == [0, 1, 2, 3, 4]


def test_a_healed_node_counts_only_once_its_guard_is_over(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    for node in five.nodes[:3]:
        node.forget()
        node.delay, node.votes_from = 0.1, five.time + 1.0
    with pytest.raises(QuorumUnavailable):
        redlock.extend(lease)
    assert five.holders() == [lease.owner] * 5
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.extend(lease)
    assert caught.value.errors["node-0:6379"] == f"{WAITS}0.8 s"
    assert caught.value.guarded
    five.pass_(0.5)  # the guard ends before the replies are there
    with pytest.raises(QuorumUnavailable):
        redlock.extend(lease)
    redlock.extend(lease)
    assert lease.deadline > five.time + VALIDITY - 1.0


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens, one by one, as dead connections are renewed; empty: they may not be."""
    steps: list[Callable[[], object]] = []

    def renew(_: SimulatedChannel) -> bool:
        steps.pop()()
        return True

    monkeypatch.setattr(SimulatedChannel, "renew", renew)
    return steps


def test_a_dead_connection_is_renewed_if_the_others_count_for_no_quorum(
    five: Network, redlock: TaskLock, lease: Lease, renewals: list[Callable[[], object]]
) -> None:
    five.nodes[0].is_up = False
    for node in five.nodes[1:3]:
        node.forget()
    renewals.append(lambda: setattr(five.nodes[0], "is_up", True))
    redlock.extend(lease)
    assert renewals == []


@pytest.mark.usefixtures("renewals")
def test_a_dead_connection_is_left_if_the_others_are_a_quorum(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].is_up = False
    redlock.extend(lease)


def test_a_guard_that_ends_before_the_repeated_request_ends_for_it(
    five: Network, redlock: TaskLock, lease: Lease, renewals: list[Callable[[], object]]
) -> None:
    five.nodes[0].is_up = five.nodes[1].is_up = False
    five.nodes[2].votes_from = five.time + 1.0
    renewals.append(lambda: five.pass_(1.0))
    redlock.extend(lease)
    assert renewals == []


def test_an_extension_awaits_no_vote_of_a_guarded_node(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    five.nodes[0].is_up = five.nodes[1].is_up = False
    five.nodes[2].votes_from = five.time + 60.0
    five.nodes[2].hang()
    began = five.time
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.extend(lease)
    assert five.time == began
    assert caught.value.errors["node-2:6379"] == f"{WAITS}60.0 s"


def test_guarded_nodes_show_that_others_were_granted_the_lock(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    take_over(five, lease, range(3))
    for node in five.nodes[:3]:
        node.votes_from = five.time + 60.0
    with pytest.raises(LeaseLost):
        redlock.extend(lease)
    assert lease.lost


def test_a_grant_that_a_node_forgot_makes_no_second_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rival has it from C already, and from hung B once our lock has expired there."""
    network = Network(3, monkeypatch)
    _, b, c = network.nodes
    ours, rivals = network.redlock(), network.redlock(node_timeout=60.0)
    c.is_up = False
    lease, began = ours.acquire("k", ttl=0.5), network.time
    c.is_up = True
    b.hang()
    network.pass_(0.01)

    def restart() -> None:
        c.forget()
        c.votes_from = network.time + 60.0

    def extend() -> None:
        with suppress(QuorumUnavailable):
            ours.extend(lease)
        on_c.append(c.holder())

    on_c: list[str | None] = []
    network.at(began + 0.1, restart)
    network.at(began + 0.15, extend)
    network.at(began + 0.25, extend)
    network.at(began + 0.55, b.resume)
    rival = rivals.acquire("k", ttl=0.9)
    assert on_c == [lease.owner] * 2, "healed by the first"
    assert network.time == pytest.approx(began + 0.55)
    assert rival.remaining() > 0
    assert lease.remaining() == 0


def test_no_leases_ask_nobody(five: Network, redlock: TaskLock) -> None:
    assert redlock.extend_all([]) == []
    assert five.log == []


def test_past_its_hold_an_extension_moves_no_expiry(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    deadline = lease.deadline
    lease.hold_until = five.time
    five.pass_(10)
    redlock.extend(lease)
    assert lease.deadline == deadline
    five.pass_(0)
    assert [node.left_ms() for node in five.nodes] == [pytest.approx(20_000, abs=1)] * 5


def test_an_extension_waits_for_a_quarter_of_what_is_left(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    for node in five.nodes:
        node.hang()
    began, left = five.time, lease.remaining()
    with pytest.raises(QuorumUnavailable):
        redlock.extend(lease)
    assert five.time - began == pytest.approx(left / 4)


def test_an_extension_waits_for_connections_as_long_as_for_replies(
    redlock: TaskLock, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_with: list[object] = []
    channel = redlock._pool.channel

    def watched(*args: Any, **options: Any) -> Any:
        asked_with.append(options.get("patience"))
        return channel(*args, **options)

    monkeypatch.setattr(redlock._pool, "channel", watched)
    left = lease.remaining()
    redlock.extend(lease)
    assert asked_with == [pytest.approx(left / 4)]


def test_an_extension_never_deletes_the_key(lease: Lease) -> None:
    """As an expiry of 0 ms does, when the deadline passes while a connection is waited for."""
    lease.hold_until = lease.deadline
    assert extension._expiry_ms(lease, lease.deadline + 10) == 1


def test_an_extension_takes_the_way_of_its_lease(five: Network, redlock: TaskLock) -> None:
    first = redlock.acquire("k0")
    with redlock._pool.channel(first.backing.channel):
        second = redlock.acquire("k1")
    for lease in (first, second):
        five.log.clear()
        redlock.extend(lease)
        assert {one.channel for one in five.log} == {lease.backing.channel.number}  # type: ignore[attr-defined]


def test_what_can_not_be_extended_is_named(five: Network, redlock: TaskLock, lease: Lease) -> None:
    reserved = redlock.reserve("r", ttl=60)
    with pytest.raises(ConfigurationError, match=r"'r'.*; reserve it for longer$"):
        redlock.extend(reserved)
    for node in five.nodes[:3]:
        node.is_up = False
    for extend, error in [(redlock.extend, QuorumUnavailable), (Lease.ensure, LeaseLost)]:
        with pytest.raises(error) as caught:
            extend(lease)
        assert caught.value.key == "k"  # type: ignore[attr-defined]
    five.pass_(TTL)
    with pytest.raises(LeaseLost) as lost:
        redlock.extend(lease)
    assert lost.value.key == "k"
    lease.is_released = True
    with pytest.raises(LeaseLost, match=r"it was released$") as lost:
        redlock.extend(lease)
    assert lost.value.key == "k"


# ---- ensure


def test_ensure_renews_and_returns(five: Network, lease: Lease) -> None:
    five.pass_(10)
    lease.ensure()
    assert lease.deadline == pytest.approx(five.time + VALIDITY)


def test_ensure_without_a_quorum_says_do_not_write(five: Network, lease: Lease) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
    with pytest.raises(LeaseLost, match="no quorum confirms it"):
        lease.ensure()


def test_ensure_of_a_lost_lease_raises(five: Network, redlock: TaskLock, lease: Lease) -> None:
    take_over(five, lease, range(5))
    with pytest.raises(LeaseLost):
        lease.ensure()


def test_ensure_of_a_reservation_is_refused(redlock: TaskLock) -> None:
    with pytest.raises(ConfigurationError):
        redlock.reserve("k", ttl=60).ensure()


def test_a_lease_released_during_its_extension_is_not_lost(
    five: Network, redlock: TaskLock, lease: Lease
) -> None:
    redlock.release(lease)
    why = redlock._extension.note_replies(lease, [Superseded()] * 5, five.time)
    assert isinstance(why, LeaseLost)
    assert why.reason == "it was released"
    assert not lease.backing.is_lost
