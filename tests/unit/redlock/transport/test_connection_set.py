"""One connection to each node, with nodes and threads that the test plays."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.connection_set import ConnectionSet
from celery_redlock.redlock.transport.node import Node
from tests.support.fakes.fake_clock import FakeClock


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()


class Peer(Node):
    """A node that is played by the test.

    Attributes:
        raises: What a connection attempt raises; None: it succeeds.
        votes_from: When its server may vote.
        attempts: How often a connection was attempted.
    """

    def __init__(self, number: int, clock: FakeClock) -> None:
        super().__init__(f"redis://node-{number}:1", clock, 1.0, 0.0, lambda event: None)
        self.raises: Exception | None = None
        self.votes_from = 0.0
        self.attempts = 0
        self.ends: list[socket.socket] = []

    def connect(self) -> NodeConnection:
        self.attempts += 1
        if self.raises:
            if isinstance(self.raises, ConnectionError):
                self.failed("refused")
            raise self.raises
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        return NodeConnection(Connection(ours), self.votes_from, self._ended)


class Stage:
    """Connections to three peers.

    Attributes:
        waiting: Connection attempts whose thread has not begun; None: each begins, and ends, at
            once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.peers = [Peer(number, self.clock) for number in range(3)]
        self.set = ConnectionSet(self.peers, self.clock, node_timeout=0.05, connect_timeout=1.0)
        self.waiting: list[Callable[[], None]] | None = None
        monkeypatch.setattr(dispatch, "start_beside", self.start)

    def start(self, run: Callable[[], None], name: str) -> None:
        if self.waiting is None:
            run()
        else:
            self.waiting.append(run)

    def mend(self, patience: float = 0.0) -> list[int]:
        """Return the nodes that are connected then, those that were ready before included."""
        self.set.mend(self.clock.now(), patience)
        self.set.adopt()
        return self.set.connected()

    def attempts(self) -> list[int]:
        return [peer.attempts for peer in self.peers]

    def close(self) -> None:
        self.set.close()
        for peer in self.peers:
            for end in peer.ends:
                end.close()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    yield stage
    stage.close()


def test_each_node_gets_one_connection(stage: Stage) -> None:
    assert stage.mend() == stage.mend() == [0, 1, 2]
    assert stage.attempts() == [1, 1, 1]
    for index, connection in enumerate(stage.set.by_node):
        assert connection
        assert stage.set.index_of[connection.fd] == index


def test_a_node_is_not_tried_again_during_an_attempt(stage: Stage) -> None:
    stage.waiting = []
    assert stage.mend() == stage.mend() == []
    assert len(stage.waiting) == 3


def test_a_caller_without_patience_waits_for_no_connection(stage: Stage) -> None:
    stage.waiting = []
    assert stage.mend(patience=0.0) == []
    stage.waiting.pop()()
    assert stage.mend() == [2], "it is there for the next one"


def test_with_a_quorum_a_failed_node_is_left_to_its_back_off(stage: Stage) -> None:
    stage.peers[0].raises = ConnectionError()
    assert stage.mend() == [1, 2]
    assert stage.mend() == [1, 2]
    assert stage.attempts() == [1, 1, 1]
    stage.peers[0].raises = None
    stage.clock.move(60.0)
    assert stage.mend() == [0, 1, 2]


def test_without_a_quorum_a_node_is_tried_despite_back_off(stage: Stage) -> None:
    for peer in stage.peers[:2]:
        peer.raises = ConnectionError()
    for _ in range(3):
        assert stage.mend() == [2]
    assert stage.attempts() == [3, 3, 1]


@pytest.mark.parametrize("guarded_until", [0.0, math.inf])
def test_a_new_channel_waits_for_the_votes_of_a_quorum(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, guarded_until: float
) -> None:
    """Of three nodes, one waits for its restart guard, and one is slow to connect."""
    stage.peers[1].votes_from = guarded_until
    begin, adopt, late, waits = stage.start, stage.set.adopt, list[Callable[[], None]](), 0

    def start(run: Callable[[], None], name: str) -> None:
        if name.endswith("node-2:1"):
            late.append(run)
        else:
            begin(run, name)

    def adopt_later(patience: float = 0.0) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            late.pop()()
        adopt(patience)
        stage.clock.move(0.1)

    monkeypatch.setattr(dispatch, "start_beside", start)
    monkeypatch.setattr(stage.set, "adopt", adopt_later)
    stage.set.mend(stage.clock.now(), 1.0)
    assert stage.set.connected() == ([0, 1, 2] if guarded_until else [0, 1])


def test_an_introduction_tries_nodes_despite_back_off(stage: Stage) -> None:
    stage.peers[0].raises = ConnectionError()
    stage.mend()
    stage.peers[0].raises = None
    stage.set.introduce()
    assert stage.set.connected() == [0, 1, 2]


def test_an_unexpected_failure_to_connect_is_logged_and_waits(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.peers[0].raises = KeyError("run_id")
    for _ in range(50):
        stage.mend()
        stage.clock.move(0.15)
    assert stage.attempts()[0] < 15, "longer from time to time"
    assert "connecting failed unexpectedly node=node-0:1" in caplog.text
    assert "run_id" in (stage.peers[0].error or "")
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize("error", [ConnectionError(), ConfigurationError("a replica")])
def test_a_failure_that_the_node_reports_is_not_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    stage.peers[0].raises = error
    assert stage.mend() == [1, 2]
    assert caplog.records == []


def test_without_a_thread_to_connect_other_connections_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    stage.mend()
    stage.set.drop(0)
    monkeypatch.setattr(dispatch, "start_beside", fail)
    stage.clock.move(60.0)
    assert stage.mend() == [1, 2]
    assert stage.peers[0].error == "no thread can be started to connect: can't start new thread"
    monkeypatch.setattr(dispatch, "start_beside", stage.start)
    stage.clock.move(60.0)
    assert stage.mend() == [0, 1, 2]


def test_a_dropped_connection_is_closed_and_made_anew(stage: Stage) -> None:
    stage.mend()
    dropped = stage.set.by_node[1]
    assert dropped
    stage.set.drop(1)
    assert stage.peers[1].ends[0].recv(1) == b"", "the server sees its end"
    assert stage.set.connected() == [0, 2]
    assert dropped.fd not in stage.set.index_of
    assert stage.set.dropped == 1
    stage.clock.move(60.0)
    assert stage.mend() == [0, 1, 2]


def test_connections_that_nobody_adopted_are_closed_as_well(stage: Stage) -> None:
    stage.waiting = []
    stage.mend()
    for connect in stage.waiting:
        connect()
    stage.set.close()
    assert [peer.ends[0].recv(1) for peer in stage.peers] == [b""] * 3
    assert stage.set.connected() == []


def test_after_a_close_connections_may_be_made_again(stage: Stage) -> None:
    stage.mend()
    stage.set.close()
    assert stage.mend() == [0, 1, 2]
