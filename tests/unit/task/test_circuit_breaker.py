"""Publications that fail fast after one that found no quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock import LockHeld, QuorumUnavailable
from celery_redlock.task.circuit_breaker import CircuitBreaker, breaker_of
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.forged import NewTask
from tests.support.fakes.one_node import OneNode

DOWN = QuorumUnavailable("first", {"a:1": "timed out", "b:1": "timed out"}, 3)


class Nodes:
    """Asked by a breaker.

    Attributes:
        took: How long the next attempt takes, seconds.
        error: What it raises.
        asked: Keys that the nodes were asked for.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.breaker = CircuitBreaker(self.clock)
        self.took = 0.05
        self.error: BaseException | None = DOWN
        self.asked: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def call(self, key: str = "k") -> str:
        def attempt() -> str:
            self.asked.append(key)
            self.clock.move(self.took)
            self.meanwhile()
            if self.error:
                raise self.error
            return "reserved"

        return self.breaker.call(key, attempt)

    def fails(self, key: str = "k") -> QuorumUnavailable:
        with pytest.raises(QuorumUnavailable) as raised:
            self.call(key)
        return raised.value


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_an_unanswered_attempt_refuses_the_next_for_ten_times_as_long(nodes: Nodes) -> None:
    assert nodes.fails("first") is DOWN
    nodes.clock.move(0.49)
    nodes.fails("second")
    assert nodes.asked == ["first"]
    nodes.clock.move(0.02)
    nodes.fails("third")
    assert nodes.asked == ["first", "third"]


def test_a_refusal_lasts_for_5_s_at_most(nodes: Nodes) -> None:
    nodes.took = 3.0
    nodes.fails("first")
    nodes.clock.move(4.9)
    nodes.fails("second")
    nodes.clock.move(0.2)
    nodes.error = None
    assert nodes.call("third") == "reserved"
    assert nodes.asked == ["first", "third"]


def test_a_refusal_has_the_nodes_reasons_and_their_age(nodes: Nodes) -> None:
    nodes.fails("first")
    nodes.clock.move(0.3)
    refusal = nodes.fails("second")
    assert refusal.key == "second"
    assert refusal.nodes == 3
    assert refusal.errors == dict.fromkeys(DOWN.errors, "0.3 s ago, not asked since: timed out")


def test_an_answered_attempt_ends_the_refusals(nodes: Nodes) -> None:
    nodes.fails()
    nodes.clock.move(1.0)
    nodes.error = LockHeld("k")
    for _ in range(2):
        with pytest.raises(LockHeld):
            nodes.call()
    assert len(nodes.asked) == 3


def test_one_attempt_at_a_time_asks_again(nodes: Nodes) -> None:
    nodes.fails("first")
    nodes.clock.move(1.0)
    nodes.meanwhile = lambda: nodes.fails("beside") if len(nodes.asked) == 2 else None
    nodes.fails("probe")
    assert nodes.asked == ["first", "probe"]


def test_an_interrupted_attempt_ends_the_refusals(nodes: Nodes) -> None:
    nodes.fails("first")
    nodes.clock.move(1.0)
    nodes.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        nodes.call("interrupted")
    nodes.error = None
    assert nodes.call("next") == "reserved"


@pytest.mark.parametrize(
    "answered",
    [
        QuorumUnavailable("k", {"a:1": "restarted", "b:1": "restarted"}, 3, guarded=2),
        QuorumUnavailable("k", {"a:1": "down", "b:1": "held"}, 3, refused=1),
        QuorumUnavailable("k", {"a:1": "down"}, 3),
    ],
)
def test_nodes_that_answered_are_asked_again(nodes: Nodes, answered: QuorumUnavailable) -> None:
    nodes.error = answered
    nodes.fails("first")
    nodes.fails("second")
    assert nodes.asked == ["first", "second"]


def test_nodes_that_were_not_waited_for_are_not_asked_again(nodes: Nodes) -> None:
    reasons = {"a:1": "restarted", "b:1": "down"}
    nodes.error = QuorumUnavailable("first", reasons, 3, guarded=1, unheard=1)
    nodes.fails("first")
    refusal = nodes.fails("second")
    assert nodes.asked == ["first"]
    assert (refusal.guarded, refusal.refused, refusal.unheard) == (1, 0, 1)


def test_a_lock_has_one_breaker() -> None:
    one, other = OneNode(), OneNode()
    assert breaker_of(one) is breaker_of(one)
    assert breaker_of(one) is not breaker_of(other)


def test_publications_after_one_without_a_quorum_do_not_ask_the_nodes(
    new_task: NewTask, node: OneNode, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def reserve(key: str, *_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        node.clock.move(0.05)
        raise QuorumUnavailable(key, {"127.0.0.1:1": "timed out"}, 1)

    task = new_task(lock_lifetime="until_executed")
    monkeypatch.setattr(node, "reserve", reserve)
    for _ in range(10):
        task.delay()
    assert asked == 1
    assert len(published) == 10
    monkeypatch.undo()
    node.clock.move(1.0)
    task.delay()
    assert node.owner_of("t")
