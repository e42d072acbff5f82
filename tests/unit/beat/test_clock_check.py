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
    return [(r.levelname, r.getMessage()) for r in caplog.records]


@pytest.mark.parametrize(
    ("ahead", "trust"),
    [
        (0.0, "right"),
        (0.95, "right"),
        (1.0, "right"),
        (-1.0, "right"),
        (1.05, "off"),
        (-3600, "off"),
    ],
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


@pytest.mark.parametrize(("step", "trust"), [(0.2, "right"), (-0.2, "right"), (0.21, "unknown")])
def test_a_small_step_is_no_setting_of_the_clock(
    check: ClockCheck, nodes: Nodes, clock: FakeClock, step: float, trust: str
) -> None:
    clock.time = 0.0
    check.check()
    nodes.off = {}
    nodes.takes = 0.0
    clock.time = 0.0
    nodes.clock.ahead = step
    assert check.check() is Trust(trust)


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
    check: ClockCheck, nodes: Nodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.clock.ahead = 0.9
    assert check.check() is Trust.RIGHT
    nodes.error = QuorumUnavailable("", {}, 3, "ask")
    for _ in range(100):
        clock.move(10_000)
        assert check.check() is Trust.RIGHT
    assert nodes.asked == 101
    assert caplog.records == []


def test_an_answer_that_took_long_says_nothing(
    check: ClockCheck, nodes: Nodes, clock: FakeClock
) -> None:
    clock.time = 0.0
    nodes.takes = 0.2
    nodes.clock.ahead = 2.0
    assert check.check() is Trust.UNKNOWN
    nodes.takes = 0.19
    assert (check.check(), nodes.asked) == (Trust.UNKNOWN, 3)
    clock.move(0.5)  # a second after the first of three rounds
    assert (check.check(), nodes.asked) == (Trust.OFF, 4)


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
    clock.move(6)
    check.check()
    off = "clock off, publishing no ticks here offset_s=-5.000 allowed_s=1.000"
    assert said(caplog) == [
        ("ERROR", off),
        ("ERROR", off),
        ("WARNING", "clock right again, publishing ticks offset_s=0.000"),
    ]


def test_it_is_said_that_nobody_can_be_asked_at_the_start(
    check: ClockCheck, nodes: Nodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.off = {}
    for _ in range(30):
        check.check()
        clock.move(1)
    assert said(caplog) == [("ERROR", "clock not compared: no quorum answered quickly")]
