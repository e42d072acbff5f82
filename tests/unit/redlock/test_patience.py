"""How long an answer is waited for: an extension's, and an acquisition's with a wait."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import LeaseLost, QuorumUnavailable, Redlock
from celery_redlock.redlock.lease import Lease
from tests.support.fakes.simulated_network import Network, SimulatedChannel

TTL = 30.0


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(3, monkeypatch)


@pytest.fixture
def redlock(three: Network) -> Redlock:
    return three.redlock(node_timeout=0.05)


@pytest.fixture
def lease(redlock: Redlock) -> Lease:
    return redlock.acquire("k", ttl=TTL)


def keep_for(three: Network, redlock: Redlock, seconds: float) -> None:
    """Let the keeper come when it wants to, for so long."""
    end = three.time + seconds
    while three.time < end:
        at = redlock.keeper.tick()
        three.pass_(max(0.001, min(at, end) - three.time))


def hang(three: Network, *numbers: int) -> None:
    for number in numbers:
        three.nodes[number].hang()


# ---- an extension


@pytest.mark.parametrize("delay", [0.04, 0.5, 2.0])
def test_a_slow_network_costs_no_lease(
    three: Network, redlock: Redlock, lease: Lease, delay: float
) -> None:
    redlock.keeper.keep(lease)
    for node in three.nodes:
        node.delay = delay
    keep_for(three, redlock, 300)
    assert not lease.lost
    assert lease.remaining() > TTL / 3


def test_a_slow_network_extends_by_hand_too(three: Network, redlock: Redlock, lease: Lease) -> None:
    for node in three.nodes:
        node.delay = 1.0
    three.pass_(10)
    redlock.extend(lease)
    assert lease.remaining() > TTL - 3


def test_an_extension_does_not_wait_for_a_slow_node(
    three: Network, redlock: Redlock, lease: Lease
) -> None:
    hang(three, 2)
    began = three.time
    redlock.extend(lease)
    assert three.time == began


def test_many_leases_of_a_hung_majority_are_told_in_time(
    three: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_redlock.redlock.keeper.BATCH", 20)
    redlock = three.redlock(node_timeout=0.05)
    told: list[float] = []
    leases = [redlock.acquire(f"k{number}", ttl=TTL) for number in range(200)]
    for lease in leases:
        redlock.keeper.keep(lease, on_lost=lambda lease: told.append(three.time - lease.deadline))
    hang(three, 1, 2)
    keep_for(three, redlock, TTL + 5)
    assert len(told) == 200
    assert max(told) < 0.2, "a round's time late at most"


# ---- max_hold


def test_ensure_past_max_hold_confirms_and_renews_nothing(three: Network, redlock: Redlock) -> None:
    is_raised = pytest.raises(LeaseLost)
    with is_raised, redlock.lock("k", ttl=TTL, max_hold=5) as lease:
        deadline = lease.deadline
        three.pass_(8)
        lease.ensure()
        assert lease.deadline == deadline
        assert all(node.left_ms() <= (deadline - three.time) * 1000 + 1000 for node in three.nodes)
        three.pass_(deadline - three.time)
        with pytest.raises(LeaseLost):
            lease.ensure()
    assert three.holders() == [None] * 3


def test_ensure_past_max_hold_does_not_shorten_the_lease(three: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL, max_hold=5) as lease:
        for _ in range(15):
            three.pass_(1.0)
            lease.ensure()
        assert all(node.left_ms() >= lease.remaining() * 1000 for node in three.nodes)


def test_ensure_before_max_hold_renews(three: Network, redlock: Redlock) -> None:
    with redlock.lock("k", ttl=TTL, max_hold=60) as lease:
        three.pass_(8)
        lease.ensure()
        assert lease.remaining() == pytest.approx(TTL, abs=0.5)


# ---- a wait


def test_connections_are_waited_for_as_long_as_the_caller_waits(
    three: Network, redlock: Redlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    patiences: list[float | None] = []

    def prepare(
        self: SimulatedChannel, patience: float | None = None, *, needs_votes: bool = True
    ) -> None:
        patiences.append(patience)
        three.pass_(0.02)

    monkeypatch.setattr(SimulatedChannel, "prepare", prepare)
    hang(three, 1, 2)
    began = three.time
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k", wait=1.0)
    assert patiences[0] == pytest.approx(1.0)
    assert patiences[-1] is not None
    assert patiences[-1] < 0.95
    assert three.time - began < 1.3
    patiences.clear()
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    assert patiences == [None], "one attempt has the connect timeout"
