"""By a wall clock that the nodes say is off nothing is done."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from celery_redlock.beat.clock_check import ClockCheck, Trust
from celery_redlock.redlock.errors import QuorumUnavailable
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_redlock import WallClock

ALLOWED = 1.0


class Nodes:
    """What they say of the clock, and how often they were asked."""

    quorum = 2

    def __init__(self, shared: FakeClock) -> None:
        self.shared = shared
        self.clock = WallClock(shared)
        self.off = {"a": 0.0, "b": 0.0, "c": 0.0}
        self.takes = 0.01
        self.asked = 0
        self.error: Exception | None = None

    def clock_offsets(self) -> dict[str, float]:
        self.asked += 1
        self.shared.move(self.takes)
        if self.error:
            raise self.error
        return {name: self.clock.ahead + off for name, off in self.off.items()}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def nodes(clock: FakeClock) -> Nodes:
    return Nodes(clock)


@pytest.fixture
def check(nodes: Nodes) -> ClockCheck:
    redlock: Any = nodes
    return ClockCheck(redlock, ALLOWED)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage().split(" offset_s")[0]) for r in caplog.records]


@pytest.mark.parametrize(
    ("ahead", "trust"),
    [(0.0, "right"), (0.95, "right"), (-0.95, "right"), (1.05, "off"), (-3600, "off")],
)
def test_a_clock_may_be_off_by_as_much_as_is_allowed(
    check: ClockCheck, nodes: Nodes, ahead: float, trust: str
) -> None:
    nodes.clock.ahead = ahead
    assert check.check() is Trust(trust)


@pytest.mark.parametrize(
    ("off", "trust"),
    [
        ({"a": 9.0, "b": 0.0, "c": 0.0}, "right"),
        ({"a": 9.0, "b": 9.0, "c": 0.0}, "off"),
        ({"a": -9.0, "b": 9.0, "c": 0.0}, "off"),
        # Of two that disagree the one that says no is heard.
        ({"a": 9.0, "b": 0.0}, "off"),
        ({"a": 0.0}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_a_majority_of_the_nodes_that_answer_has_to_agree(
    check: ClockCheck, nodes: Nodes, off: dict[str, float], trust: str
) -> None:
    nodes.off = off
    assert check.check() is Trust(trust)


def test_nodes_are_asked_from_time_to_time(
    check: ClockCheck, nodes: Nodes, clock: FakeClock
) -> None:
    for _ in range(1000):
        check.check()
        clock.move(0.1)
    assert 19 <= nodes.asked <= 21


def test_a_clock_that_was_set_is_untrusted_until_compared(
    check: ClockCheck, nodes: Nodes, clock: FakeClock
) -> None:
    assert check.check() is Trust.RIGHT
    clock.move(0.1)
    nodes.clock.ahead = 3600
    assert check.check() is Trust.OFF
    nodes.clock.ahead = 0
    assert check.check() is Trust.RIGHT
    nodes.off = {}
    nodes.clock.ahead = 0.5
    assert check.check() is Trust.UNKNOWN


def test_what_was_found_stays_while_nobody_can_be_asked(
    check: ClockCheck, nodes: Nodes, clock: FakeClock
) -> None:
    assert check.check() is Trust.RIGHT
    nodes.error = QuorumUnavailable("", {}, 3, "ask")
    for _ in range(100):
        clock.move(1)
        assert check.check() is Trust.RIGHT
    assert nodes.asked < 105


def test_an_answer_that_took_long_says_nothing(
    check: ClockCheck, nodes: Nodes, clock: FakeClock
) -> None:
    nodes.takes = 4.0
    nodes.clock.ahead = 2.0
    assert check.check() is Trust.UNKNOWN
    nodes.takes = 0.1
    clock.move(1)
    assert check.check() is Trust.OFF


def test_it_is_said_once_a_minute_and_when_it_is_over(
    check: ClockCheck, nodes: Nodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    nodes.clock.ahead = -5
    for _ in range(110):
        check.check()
        clock.move(1)
    nodes.clock.ahead = 0
    check.check()
    check.check()
    assert said(caplog) == [
        ("ERROR", "clock off, publishing no ticks here"),
        ("ERROR", "clock off, publishing no ticks here"),
        ("WARNING", "clock right again, publishing ticks"),
    ]


def test_it_is_said_that_nobody_can_be_asked_at_the_start(
    check: ClockCheck, nodes: Nodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.off = {}
    for _ in range(30):
        check.check()
        clock.move(1)
    assert [level for level, _ in said(caplog)] == ["ERROR"]
