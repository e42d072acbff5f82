"""Who a server is, and when it may vote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_redlock.redlock.events import Event, NodeDown, NodeRefuses, NodeUp
from celery_redlock.redlock.transport.node import Node
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import FakeNode

GUARD = 63.6
BACKOFF_MAX_S = 5.0


class Stage:
    """A node, and the server that plays it."""

    def __init__(self, server: FakeNode) -> None:
        self.server = server
        self.clock = FakeClock()
        self.seen: list[Event] = []
        self.node = self.new_node()

    def new_node(self) -> Node:
        return Node(self.server.url, self.clock, 60.0, GUARD, self.seen.append)

    def votes_in(self) -> float:
        """Connect; return after how many seconds the server may vote."""
        connection = self.node.connect()
        connection.disconnect()
        return connection.votes_from - self.clock.now()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with FakeNode() as server:
        yield Stage(server)


# ---- the restart guard


def test_a_connection_has_the_time_from_which_its_server_votes(stage: Stage) -> None:
    stage.server.info["uptime_in_seconds"] = 20
    assert stage.votes_in() == pytest.approx(GUARD - 20)
    [event] = stage.seen
    assert isinstance(event, NodeUp)
    assert event.votes_in == pytest.approx(GUARD - 20)


# ---- whether it writes


def test_a_refusal_is_told_again_after_a_minute_without_one(stage: Stage) -> None:
    for _ in range(100):
        stage.node.refuses("OOM")
        stage.clock.move(59)
    assert stage.seen == [NodeRefuses(stage.node.name, "OOM")]
    stage.clock.move(2)
    stage.node.refuses("OOM")
    assert len(stage.seen) == 2


def test_a_node_that_writes_again_is_told_once(stage: Stage) -> None:
    stage.node.writes(0.0)
    assert stage.seen == []
    stage.node.refuses("OOM")
    stage.node.writes(3.0)
    stage.node.writes(2.0)
    stage.node.refuses("OOM")
    assert [type(event) for event in stage.seen] == [NodeRefuses, NodeUp, NodeRefuses]


# ---- back-off


def test_an_attempt_keeps_other_channels_from_trying_a_lost_node(stage: Stage) -> None:
    stage.node.failed("refused")
    stage.node.attempt_begins(stage.clock.now())
    assert stage.node.retry_at == stage.clock.now() + BACKOFF_MAX_S


def test_a_node_that_talks_nonsense_is_tried_ever_less_often(stage: Stage) -> None:
    for _ in range(10):
        connection = stage.node.connect()
        connection.fail("it babbles", blames_node=True)
        connection.disconnect()
    assert stage.node.retry_at - stage.clock.now() >= BACKOFF_MAX_S / 2
    stage.clock.move(61)
    stage.votes_in()
    stage.node.failed("once")
    assert stage.node.retry_at - stage.clock.now() < 1, "that is long ago"


def test_an_attempt_at_a_node_that_is_up_keeps_nobody_waiting(stage: Stage) -> None:
    stage.votes_in()
    stage.node.attempt_begins(stage.clock.now())
    assert stage.node.retry_at == 0.0
    assert not [event for event in stage.seen if isinstance(event, NodeDown)]
