"""One connection to each node, with nodes and threads that the test plays."""

from __future__ import annotations

import logging
import math
import queue
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

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
        is_spare: Whether the last one was to be a spare.
    """

    def __init__(self, number: int, clock: FakeClock) -> None:
        super().__init__(f"redis://node-{number}:1", clock, 1.0, 0.0, lambda event: None)
        self.raises: Exception | None = None
        self.votes_from = 0.0
        self.attempts = 0
        self.is_spare = False
        self.run_id_of_server: str | None = None
        self.ends: list[socket.socket] = []

    def connect(self, *, is_spare: bool = False) -> NodeConnection:
        self.attempts += 1
        self.is_spare = is_spare
        if self.raises:
            if isinstance(self.raises, ConnectionError):
                self.failed("refused")
            raise self.raises
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        self.error, self.tried_at = None, self.clock.now()
        self.forget_attempts()
        connection = NodeConnection(Connection(ours), self.votes_from, self._ended)
        connection.run_id = self.run_id_of_server
        return connection


class Stage:
    """Connections to three peers.

    Attributes:
        waiting: Connection attempts whose thread has not begun; None: each begins, and ends, at
            once.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.peers = [Peer(number, self.clock) for number in range(3)]
        self.set = self.new_set()
        self.waiting: list[Callable[[], None]] | None = None
        monkeypatch.setattr(dispatch, "start_beside", self.start)

    def new_set(self) -> ConnectionSet:
        return ConnectionSet(self.peers, self.clock, node_timeout=0.05, connect_timeout=1.0)

    def start(self, run: Callable[[], None], name: str) -> None:
        if self.waiting is None:
            run()
        else:
            self.waiting.append(run)

    def reconnect(self, patience: float = 0.0) -> list[int]:
        """Return the nodes that are connected then, those that were ready before included."""
        self.set.reconnect(self.clock.now(), patience)
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
    assert stage.reconnect() == stage.reconnect() == [0, 1, 2]
    assert stage.attempts() == [1, 1, 1]
    for index, connection in enumerate(stage.set.by_node):
        assert connection
        assert connection.greeted == connection.received
        assert stage.set.index_of[connection.fd] == index
    assert list(stage.set.poller.wait(0.0)) == []


def test_a_node_is_not_tried_again_during_an_attempt(stage: Stage) -> None:
    stage.waiting = []
    assert stage.reconnect() == stage.reconnect() == []
    assert len(stage.waiting) == 3


def test_a_caller_without_patience_waits_for_no_connection(stage: Stage) -> None:
    stage.waiting = []
    assert stage.reconnect(patience=0.0) == []
    stage.waiting.pop()()
    assert stage.reconnect() == [2], "it is there for the next one"


def test_with_a_quorum_a_failed_node_is_left_to_its_back_off(stage: Stage) -> None:
    stage.peers[0].raises = ConnectionError()
    assert stage.reconnect() == [1, 2]
    assert stage.reconnect() == [1, 2]
    assert stage.attempts() == [1, 1, 1]
    stage.peers[0].raises = None
    stage.clock.move(60.0)
    assert stage.reconnect() == [0, 1, 2]


def test_without_a_quorum_each_pause_has_one_attempt(stage: Stage) -> None:
    for peer in stage.peers[:2]:
        peer.raises = ConnectionError()
    sets = [stage.new_set() for _ in range(20)]
    for _ in range(100):
        for one in sets:
            one.reconnect(stage.clock.now(), 0.0)
        stage.clock.move(0.1)
    for one in sets:
        one.close()
    assert stage.attempts()[2] == 20, "one for each channel"
    assert 15 <= stage.attempts()[0] <= 60, "in ten seconds, with pauses of half a second"


def test_a_caller_without_a_quorum_waits_for_the_next_attempt(stage: Stage) -> None:
    for peer in stage.peers:
        peer.raises = ConnectionError()
    for _ in range(2):  # the first failure allows another attempt at once
        stage.reconnect()
    stage.clock.move(0.001)
    for peer in stage.peers:
        peer.raises = None
    assert stage.reconnect() == [], "without patience it has no news"
    began = stage.clock.now()
    assert stage.reconnect(patience=0.01) == []
    assert stage.clock.now() - began == pytest.approx(0.01)
    assert len(stage.reconnect(patience=3.0)) >= 2
    assert stage.clock.now() - began <= 0.1


def test_a_pause_without_a_quorum_is_half_a_second_at_most(stage: Stage) -> None:
    for peer in stage.peers:
        peer.raises = ConnectionError()
    for _ in range(20):
        stage.clock.time = max(1000.0, *(peer.retry_short_at for peer in stage.peers))
        stage.reconnect()
    began = stage.clock.now()
    stage.clock.move(0.001)
    for peer in stage.peers:
        peer.raises = None
    assert len(stage.reconnect(patience=3.0)) >= 2
    assert stage.clock.now() - began == pytest.approx(0.5)


def test_with_a_quorum_pauses_grow_to_five_seconds(stage: Stage) -> None:
    stage.peers[0].raises = ConnectionError()
    for _ in range(1000):
        stage.reconnect()
        stage.clock.move(0.1)
    assert stage.attempts()[0] < 50


def test_a_waiting_channel_is_served_by_the_attempt_of_another(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that were down come back while another channel connects to them."""
    for peer in stage.peers:
        peer.raises = ConnectionError()
    stage.reconnect()
    for peer in stage.peers:
        peer.raises = None
    stage.clock.move(1.0)
    another, stage.waiting, sleep = stage.new_set(), [], stage.clock.sleep
    another.reconnect(stage.clock.now(), 0.0)
    under_way, stage.waiting = stage.waiting, None

    def sleep_then_connect(seconds: float) -> None:
        sleep(seconds)
        while under_way:
            under_way.pop()()

    monkeypatch.setattr(stage.clock, "sleep", sleep_then_connect)
    assert stage.reconnect(patience=3.0) == [0, 1, 2]
    assert stage.attempts() == [3, 3, 3], "each has connected once since"
    another.close()


def test_a_failed_attempt_of_another_channel_ends_a_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for peer in stage.peers:
        peer.raises = ConnectionError()
    stage.reconnect()
    stage.clock.move(1.0)
    another, stage.waiting, sleep = stage.new_set(), [], stage.clock.sleep
    another.reconnect(stage.clock.now(), 0.0)
    under_way, stage.waiting = stage.waiting, None

    def sleep_then_fail(seconds: float) -> None:
        sleep(seconds)
        while under_way:
            under_way.pop()()

    monkeypatch.setattr(stage.clock, "sleep", sleep_then_fail)
    began = stage.clock.now()
    assert stage.reconnect(patience=3.0) == []
    assert stage.clock.now() - began <= 0.1
    assert stage.attempts() == [2, 2, 2], "it has made no attempt of its own"
    another.close()


def test_a_child_waits_for_no_attempt_of_its_parent(stage: Stage) -> None:
    for peer in stage.peers:
        peer.raises = ConnectionError()
    stage.reconnect()
    stage.clock.move(1.0)
    stage.waiting = []
    stage.reconnect()
    child = stage.new_set()
    stage.waiting = None
    for peer in stage.peers:
        peer.raises = None
        peer.forget_attempts()
    child.reconnect(stage.clock.now(), 0.0)
    child.adopt()
    assert child.connected() == [0, 1, 2]
    child.close()


def test_a_caller_waits_for_several_addresses_of_a_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two addresses drop what is sent: each costs the connect timeout."""
    stage.waiting = []
    adopt = stage.set.adopt

    def adopt_later(patience: float = 0.0) -> None:
        if stage.clock.now() < 1002.1:
            stage.clock.move(min(patience, 0.5))
        else:
            while stage.waiting:
                stage.waiting.pop()()
            adopt(patience)

    monkeypatch.setattr(stage.set, "adopt", adopt_later)
    stage.set.reconnect(stage.clock.now(), stage.set.patience)
    assert stage.set.connected() == [0, 1, 2]


def test_a_server_at_two_addresses_has_one_connection(stage: Stage) -> None:
    stage.reconnect()
    first = stage.set.by_node[0]
    assert first
    first.run_id = "moved"
    stage.set.drop(1)
    stage.clock.move(60.0)
    stage.peers[1].run_id_of_server = "moved"
    assert stage.reconnect() == [1, 2]
    assert stage.peers[0].error is None, "the address may lead to another server"
    assert first.closed


# ---- connections that broke


def test_a_missed_node_is_connected_to_beside_a_quorum(stage: Stage) -> None:
    assert stage.reconnect() == [0, 1, 2]
    connection = stage.set.by_node[0]
    assert connection
    connection.fail("the server closed the connection")
    stage.set.drop(0)
    assert stage.reconnect() == [1, 2], "soon"
    stage.peers[0].raises = ConnectionError()
    stage.set.reconnect(stage.clock.now(), 1.0, for_all=True)
    assert stage.attempts() == [2, 1, 1], "one attempt is enough"
    stage.peers[0].raises = None
    stage.set.reconnect(stage.clock.now(), 1.0, for_all=True)
    assert stage.set.connected() == [0, 1, 2]


def test_a_first_attempt_that_fails_is_made_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What broke all connections may have broken the first attempt; only a second one pauses."""
    assert stage.reconnect() == [0, 1, 2]
    stage.clock.move(0.001)
    for index, fails in enumerate((1, 1, 9)):
        stage.set.drop(index)
        peer, left = stage.peers[index], [fails]

        def connect(*, is_spare: bool = False, peer: Peer = peer, left: list[int] = left) -> Any:
            peer.raises = ConnectionError() if left[0] else None
            left[0] -= bool(left[0])
            return Peer.connect(peer, is_spare=is_spare)

        monkeypatch.setattr(peer, "connect", connect)
    stage.set.reconnect(stage.clock.now(), 1.0, for_all=True)
    assert stage.set.connected() == [0, 1]
    assert stage.attempts()[:2] == [3, 3]


@pytest.mark.parametrize("comes", [True, False])
def test_spares_of_all_nodes_are_waited_for(stage: Stage, *, comes: bool) -> None:
    """A release that is on its way to the third node would be lost with its old connection."""
    assert stage.reconnect() == [0, 1, 2]
    old = stage.set.by_node.copy()
    for connection in stage.set.by_node:
        assert connection
        connection.send(b"*1\r\n$4\r\nPING\r\n", 1, stage.clock.now())
    stage.clock.move(1.0)
    stage.waiting, began = [], stage.clock.now()
    assert stage.set.try_spares(began, needs_votes=True)
    first, second, third = stage.waiting
    for connect in (first, second):
        connect()
    stage.set.adopt()
    assert stage.set.dropped == 2
    assert stage.set.try_spares(began, needs_votes=True), "the third is on its way"
    if comes:
        third()
        stage.set.adopt()
    else:
        stage.clock.move(0.05)
    assert not stage.set.try_spares(began, needs_votes=True)
    assert stage.set.dropped == 2 + comes
    assert [one and bool(one.closed) for one in old] == [True, True, comes]
    assert [peer.is_spare for peer in stage.peers] == [True, True, comes]


@pytest.mark.parametrize(("owed_for", "spares"), [(0.02, 0), (0.03, 3)])
def test_who_has_owed_for_half_of_the_timeout_is_silent(
    stage: Stage, owed_for: float, spares: int
) -> None:
    now = fall_silent(stage, owed_for)
    assert stage.set.try_spares(now, needs_votes=True) == (spares > 0)
    assert len(stage.waiting or ()) == spares


def test_a_spare_that_is_under_way_is_the_only_one(stage: Stage) -> None:
    fall_silent(stage, 1.0)
    for _ in range(2):
        stage.set.try_spares(stage.clock.now(), needs_votes=True)
        stage.clock.move(6.0)
    assert len(stage.waiting or ()) == 3
    assert [peer.attempt_began_at for peer in stage.peers] == [1000.0] * 3, "it is no attempt"


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_missing_node_is_connected_to_beside_a_silent_one(
    stage: Stage, *, is_broken: bool
) -> None:
    """Else it would be tried only after the wait for a spare, which has no time left then."""
    began = fall_silent(stage, 1.0)
    stage.set.by_node[2].received = 1  # type: ignore[union-attr]
    stage.set.drop(1)
    stage.peers[1].raises = ConnectionError() if is_broken else None
    assert stage.set.try_spares(began, needs_votes=True)
    assert stage.waiting
    missing, spare = stage.waiting
    missing()
    stage.set.adopt()
    if is_broken:
        stage.peers[1].raises = None
        assert stage.set.try_spares(began, needs_votes=True)
        assert stage.waiting[2:], "it is tried again at once"
        stage.waiting[2]()
        stage.set.adopt()
    assert stage.set.connected() == [0, 1, 2]
    stage.clock.move(0.05)
    assert not stage.set.try_spares(began, needs_votes=True), "a quorum answers"
    assert stage.attempts() == [1, 2 + is_broken, 1], "the spare still hangs"
    spare()
    stage.set.adopt()
    assert stage.peers[0].is_spare


def test_a_missing_node_is_waited_for_while_spares_pause(stage: Stage) -> None:
    """The server that hangs is known to hang, and the connection to another one has ended."""
    began = fall_silent(stage, 1.0)
    for index in (1, 2):
        stage.set.by_node[index].received = 1  # type: ignore[union-attr]
    stage.peers[0].spares.begins(stage.set.by_node[0])  # type: ignore[arg-type]
    stage.peers[0].spares.ends(is_made=False, is_quick=False)
    assert not stage.set.try_spares(began, needs_votes=True), "a quorum answers"
    assert stage.waiting == []
    stage.set.drop(1)
    assert stage.set.try_spares(began, needs_votes=True)
    stage.clock.move(0.49)
    assert stage.set.try_spares(began, needs_votes=True)
    stage.clock.move(0.02)
    assert not stage.set.try_spares(began, needs_votes=True)
    assert stage.attempts() == [1, 1, 1]
    assert stage.waiting
    stage.waiting[0]()
    stage.set.adopt()
    assert stage.set.connected() == [0, 1, 2]


def test_without_a_silent_connection_no_spare_is_tried(stage: Stage) -> None:
    """Whoever is missing is waited for elsewhere, for longer."""
    assert stage.reconnect() == [0, 1, 2]
    for index in (0, 1):
        stage.set.drop(index)
    stage.waiting = []
    assert not stage.set.try_spares(stage.clock.now(), needs_votes=True)
    assert stage.waiting == []


def fall_silent(stage: Stage, owed_for: float) -> float:
    """Let all connections owe a reply for so long, and attempts hang; return the time."""
    assert stage.reconnect() == [0, 1, 2]
    for connection in filter(None, stage.set.by_node):
        connection.send(b"*1\r\n$4\r\nPING\r\n", 1, stage.clock.now())
    stage.clock.move(owed_for)
    stage.waiting = []
    return stage.clock.now()


@pytest.mark.parametrize(
    ("took", "is_made", "is_quick"), [(0.04, True, True), (0.06, True, False), (0.0, False, False)]
)
def test_a_spare_ends_as_made_or_not_and_as_quick_or_not(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, took: float, is_made: bool, is_quick: bool
) -> None:
    peer, ends = stage.peers[0], list[dict[str, bool]]()
    monkeypatch.setattr(peer.spares, "ends", lambda **how: ends.append(how))
    stage.set.try_spares(fall_silent(stage, 1.0), needs_votes=True)
    connect = peer.connect

    def connect_later(*, is_spare: bool) -> NodeConnection:
        stage.clock.move(took)
        return connect(is_spare=is_spare)

    monkeypatch.setattr(peer, "connect", connect_later)
    peer.raises = None if is_made else KeyError()
    assert stage.waiting
    stage.waiting[0]()
    assert ends == [{"is_made": is_made, "is_quick": is_quick}]
    assert peer.error is None


@pytest.mark.parametrize(("node_timeout", "longest"), [(0.05, 0.5), (2.0, 2.0)])
def test_spares_are_waited_for_from_when_they_were_needed(
    stage: Stage, node_timeout: float, longest: float
) -> None:
    began = fall_silent(stage, 1.0)
    stage.set._node_timeout = node_timeout
    for later, waits in ((0.0, True), (longest - 0.01, True), (longest + 0.01, False)):
        stage.clock.time = began + later
        assert stage.set.try_spares(began, needs_votes=True) == waits
        for peer in stage.peers:
            peer.spares.began_at = stage.clock.now()


@pytest.mark.parametrize("ends_late", [False, True])
def test_an_attempt_that_broke_with_the_connections_is_made_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, *, ends_late: bool
) -> None:
    """The connection to one node was still being made when all others broke."""
    stage.waiting = []
    stage.set.reconnect(stage.clock.now(), 0.0)
    break_first, *others = stage.waiting
    for connect in others:
        connect()
    stage.set.adopt()
    stage.clock.move(0.001)
    for index in stage.set.connected():
        stage.set.drop(index)
    stage.waiting, stage.peers[0].raises = None, ConnectionError()
    ends = [break_first]

    def end(patience: float = 0.0) -> None:
        if ends:
            ends.pop()()
            stage.peers[0].raises = None
        ConnectionSet.adopt(stage.set, 0.0)

    monkeypatch.setattr(stage.set, "adopt", end)
    if not ends_late:
        end()
    stage.clock.move(0.001)
    stage.set.reconnect(stage.clock.now(), 1.0, for_all=True)
    assert stage.set.connected() == [0, 1, 2]


@pytest.mark.parametrize("failures", [0, 1])
def test_who_loses_all_connections_at_once_waits_for_new_ones(stage: Stage, failures: int) -> None:
    """The end of a connection is no attempt to connect that failed."""
    assert stage.reconnect() == [0, 1, 2]
    for peer in stage.peers:
        peer._failures = failures
    now = stage.clock.now()
    for connection in stage.set.by_node:
        assert connection
        connection.send(b"*1\r\n$4\r\nPING\r\n", 1, now)
    stage.clock.move(36.0)
    began = stage.clock.now()
    stage.clock.move(0.001)
    stage.set.drop_stale(stage.clock.now())
    assert stage.set.connected() == []
    stage.set.reconnect(began, 1.0, for_all=True)
    assert len(stage.set.connected()) >= 2


@pytest.mark.parametrize(
    ("node_timeout", "patience", "for_all", "is_up_again", "waited"),
    [
        (0.05, 24.0, True, False, 0.5), (2.0, 24.0, True, False, 2.0),
        (0.05, 0.2, True, False, 0.2), (0.05, 24.0, True, True, 24.0),
        (0.05, 24.0, False, False, 0.001),
    ],
)  # fmt: skip
def test_a_server_that_hangs_is_waited_for_but_briefly(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    node_timeout: float,
    patience: float,
    for_all: bool,
    is_up_again: bool,
    waited: float,
) -> None:
    stage.set._node_timeout = node_timeout
    assert stage.reconnect() == [0, 1, 2]
    for connection in stage.set.by_node[:2]:
        assert connection
        connection.send(b"*1\r\n$4\r\nPING\r\n", 1, stage.clock.now())
    stage.clock.move(36.0)
    began = stage.clock.now()
    stage.clock.move(0.001)
    stage.set.drop_stale(stage.clock.now())
    for peer in stage.peers[:2]:
        peer.error = None if is_up_again else peer.error  # as another channel has found
    stage.waiting = []  # so do attempts to connect
    monkeypatch.setattr(stage.set, "adopt", lambda patience=0.0: stage.clock.move(patience))
    stage.set.reconnect(began, patience, for_all=for_all)
    assert len(stage.waiting) == 2 * for_all, "else only later callers try again"
    assert stage.clock.now() - began == pytest.approx(waited)


def test_a_spare_of_a_given_up_connection_is_waited_for_briefly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried while the connection had not been given up, and hangs like it."""
    stage.set.try_spares(fall_silent(stage, 1.0), needs_votes=True)
    assert len(stage.waiting or ()) == 3
    stage.clock.move(36.0)
    began = stage.clock.now()
    stage.clock.move(0.001)
    stage.set.drop_stale(stage.clock.now())
    assert stage.set.connected() == []
    monkeypatch.setattr(stage.set, "adopt", lambda patience=0.0: stage.clock.move(patience))
    stage.set.reconnect(began, 24.0, for_all=True)
    assert stage.clock.now() - began == pytest.approx(0.5)


def test_a_node_that_refuses_meanwhile_has_not_been_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another node, whose connection takes long, would be waited for but briefly."""
    assert stage.reconnect() == [0, 1, 2]
    began = stage.clock.now()
    stage.clock.move(0.001)
    stage.set.drop(1)
    stage.set.drop(2)
    stage.waiting = []
    stage.set._start_due(stage.clock.now(), is_short=True)
    _, refused = stage.waiting
    stage.peers[2].raises = ConnectionError()
    refused()
    assert stage.peers[2].error
    monkeypatch.setattr(stage.set, "adopt", lambda patience=0.0: stage.clock.move(patience))
    stage.set.reconnect(began, 24.0, for_all=True)
    assert stage.clock.now() - began == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("guarded", "asked_ago", "owes", "stay"),
    [(2, 5.0, False, 1), (2, 4.9, False, 3), (2, 5.0, True, 3), (1, 5.0, False, 3)],
)
def test_guarded_nodes_are_asked_again_while_no_quorum_votes(
    stage: Stage, guarded: int, asked_ago: float, owes: bool, stay: int
) -> None:
    assert stage.reconnect() == [0, 1, 2]
    now = stage.clock.now()
    for connection in stage.set.by_node[:guarded]:
        assert connection
        connection.identified_at, connection.votes_from = now - asked_ago, now + 60.0
        connection.sent += owes
        connection.owed_since = now
    stage.set.drop_stale(now)
    assert len(stage.set.connected()) == stay


@pytest.mark.parametrize("guarded_until", [0.0, math.inf])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_channel_waits_for_the_votes_of_a_quorum(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, guarded_until: float, is_new: bool
) -> None:
    """Of three nodes, one waits for its restart guard, and one is slow to connect."""
    stage.peers[1].votes_from = guarded_until
    if not is_new:
        stage.reconnect()
        stage.set.drop(2)
        missing = stage.peers[2]
        while missing.retry_at < missing.retry_short_at + 1:  # each pause is longer
            stage.clock.time = missing.retry_at
            missing.failed("refused")
        stage.clock.time = missing.retry_short_at
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
    stage.set.reconnect(stage.clock.now(), 1.0)
    assert stage.set.connected() == ([0, 1, 2] if guarded_until else [0, 1])


@pytest.mark.parametrize("is_hung", [True, False])
def test_where_no_vote_is_needed_a_guarded_node_makes_the_quorum(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, is_hung: bool
) -> None:
    """Of three nodes, one waits for its restart guard, and one hangs, or refuses connections."""
    stage.peers[1].votes_from = math.inf
    stage.peers[2].raises = ConnectionError()
    stage.reconnect()
    stage.clock.time = stage.peers[2].retry_at
    waits: list[float] = []
    monkeypatch.setattr(stage.clock, "sleep", waits.append)
    monkeypatch.setattr(stage.set, "adopt", waits.append)
    if is_hung:
        stage.waiting = []
    stage.set.reconnect(stage.clock.now(), 3.0, needs_votes=False)
    assert stage.set.connected() == [0, 1]
    assert waits == []


def test_a_wait_for_votes_ends_with_a_guard_that_brings_the_quorum(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three nodes, one waits for the end of its restart guard, and one hangs."""
    stage.peers[1].votes_from = stage.clock.now() + 0.5
    stage.peers[2].raises = ConnectionError()
    stage.reconnect()
    stage.clock.time = stage.peers[2].retry_at
    stage.waiting = []
    monkeypatch.setattr(stage.set, "adopt", stage.clock.move)
    stage.set.reconnect(stage.clock.now(), 3.0)
    assert stage.clock.now() == pytest.approx(stage.peers[1].votes_from)


def test_an_introduction_tries_nodes_despite_back_off(stage: Stage) -> None:
    stage.peers[0].raises = ConnectionError()
    stage.set.reconnect(stage.clock.now(), 0.0)
    stage.peers[0].raises = None
    stage.set.connect_all()
    assert stage.set.connected() == [0, 1, 2]
    assert stage.attempts() == [2, 1, 1]


def test_an_introduction_waits_for_several_addresses(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.waiting, began = [], stage.clock.now()
    monkeypatch.setattr(stage.set, "adopt", lambda patience=0.0: stage.clock.move(patience / 2))
    stage.set.connect_all()
    assert stage.set.patience == 3.0
    assert stage.clock.now() - began == pytest.approx(3.0)


@pytest.mark.parametrize(("due_in", "pause"), [(-1.0, 0.001), (0.02, 0.02), (9.0, 0.05)])
def test_a_pause_is_waited_for_with_looks(stage: Stage, due_in: float, pause: float) -> None:
    stage.peers[0].retry_short_at = stage.clock.now() + due_in
    assert stage.set._pause([stage.peers[0]], stage.clock.now()) == pytest.approx(pause)


@pytest.mark.parametrize(
    ("patience", "needs_votes", "waited"),
    [(3.0, True, 0.05), (3.0, False, 0.05), (0.01, True, 0.01)],
)
def test_with_a_quorum_the_rest_is_waited_for_briefly(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, patience: float, needs_votes: bool, waited: float
) -> None:
    stage.peers[0].votes_from = 0.0 if needs_votes else math.inf
    stage.waiting = []
    stage.set.reconnect(stage.clock.now(), 0.0)
    for connect in stage.waiting[:2]:
        connect()

    def adopt(patience: float = 0.0) -> None:
        before = stage.set.adopted
        ConnectionSet.adopt(stage.set)
        stage.clock.move(patience if stage.set.adopted == before else 0.0)

    monkeypatch.setattr(stage.set, "adopt", adopt)
    began = stage.clock.now()
    stage.set.reconnect(began, patience, needs_votes=needs_votes)
    assert stage.set.connected() == [0, 1]
    assert stage.clock.now() - began == pytest.approx(waited)


def test_nodes_that_failed_before_do_not_shorten_a_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for peer in stage.peers[:2] * 2:
        peer.failed("refused")
    stage.clock.move(0.001)
    stage.waiting, began = [], stage.clock.now()
    monkeypatch.setattr(stage.set, "adopt", lambda patience=0.0: stage.clock.move(patience))
    stage.set.reconnect(began, 3.0, for_all=True)
    assert stage.clock.now() - began == pytest.approx(3.0)


def test_with_a_quorum_no_pause_of_the_rest_is_waited_for(stage: Stage) -> None:
    for _ in range(2):
        stage.peers[2].failed("refused")
    stage.clock.move(0.001)
    began = stage.clock.now()
    assert stage.reconnect(patience=3.0) == [0, 1]
    assert stage.clock.now() == began


def test_only_the_first_arrival_is_waited_for(stage: Stage) -> None:
    asked: list[tuple[bool, float | None]] = []

    class Arrivals(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            asked.append((block, timeout))
            return super().get(block=False)

    stage.set._arrivals = Arrivals()
    stage.set._arrivals.put((0, None))
    stage.set.adopt(0.5)
    assert asked == [(True, 0.5), (False, None)]


def test_an_unexpected_failure_to_connect_is_logged_and_waits(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.peers[0].raises = KeyError("run_id")
    for _ in range(50):
        stage.reconnect()
        stage.clock.move(0.15)
    assert stage.attempts()[0] < 15, "longer from time to time"
    assert "connecting failed unexpectedly node=node-0:1" in caplog.text
    assert "run_id" in (stage.peers[0].error or "")
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert caplog.records[0].exc_info


@pytest.mark.parametrize("error", [ConnectionError(), ConfigurationError("a replica")])
def test_a_failure_that_the_node_reports_is_not_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    stage.peers[0].raises = error
    assert stage.reconnect() == [1, 2]
    assert caplog.records == []


def test_without_a_thread_to_connect_other_connections_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def fail(run: Callable[[], None], name: str) -> None:
        started.append(name)
        raise RuntimeError("can't start new thread")

    stage.reconnect()
    stage.set.drop(0)
    monkeypatch.setattr(dispatch, "start_beside", fail)
    stage.clock.move(60.0)
    assert stage.reconnect() == [1, 2]
    assert stage.peers[0].error == "no thread can be started to connect: can't start new thread"
    for connection in filter(None, stage.set.by_node):
        connection.sent += 1
    for _ in range(2):
        assert not stage.set.try_spares(stage.clock.now(), needs_votes=True), "nor for a spare"
        assert [peer.error for peer in stage.peers[1:]] == [None, None]
    # There is no pause after the first failure of a missing one.
    assert started == [f"redlock-connect-node-{number}:1" for number in (0, 0, 1, 2)]
    for connection in filter(None, stage.set.by_node):
        connection.received += 1
    monkeypatch.setattr(dispatch, "start_beside", stage.start)
    stage.clock.move(60.0)
    assert stage.reconnect() == [0, 1, 2]


def test_a_connection_from_before_its_server_was_a_replica_is_dropped(stage: Stage) -> None:
    stage.reconnect()
    stage.set.drop(0)  # the missing one comes first
    stage.peers[1].history = "of the server, when it was a master again"
    stage.set.drop_stale(stage.clock.now())
    assert stage.set.connected() == [2]


def test_a_dropped_connection_is_closed_and_made_anew(stage: Stage) -> None:
    stage.reconnect()
    dropped = stage.set.by_node[1]
    assert dropped
    stage.set.drop(1)
    assert stage.peers[1].ends[0].recv(1) == b"", "the server sees its end"
    assert stage.set.connected() == [0, 2]
    assert dropped.fd not in stage.set.index_of
    assert stage.set.dropped == 1
    stage.clock.move(60.0)
    assert stage.reconnect() == [0, 1, 2]


def test_connections_that_nobody_adopted_are_closed_as_well(stage: Stage) -> None:
    stage.waiting = []
    stage.reconnect()
    for connect in stage.waiting:
        connect()
    stage.set.close()
    assert [peer.ends[0].recv(1) for peer in stage.peers] == [b""] * 3
    assert stage.set.connected() == []


def test_a_connection_that_cannot_be_closed_keeps_no_other_open(stage: Stage) -> None:
    stage.reconnect()
    broken = stage.set.by_node[0]
    assert broken
    kept, broken._connection = broken._connection, cast(Any, None)
    stage.set.close()
    assert [peer.ends[0].recv(1) for peer in stage.peers[1:]] == [b"", b""]
    kept.disconnect()


def test_a_connection_that_comes_after_the_close_is_closed(stage: Stage) -> None:
    stage.waiting = []
    stage.reconnect()
    stage.set.close()
    for connect in stage.waiting:
        connect()
    for peer in stage.peers:
        peer.ends[0].setblocking(False)
        assert peer.ends[0].recv(1) == b""
    assert stage.set.connected() == []
    stage.waiting = None
    stage.clock.move(60.0)
    assert stage.reconnect() == [0, 1, 2], "others are made as ever"


def test_after_a_close_connections_may_be_made_again(stage: Stage) -> None:
    stage.reconnect()
    stage.set.close()
    assert stage.reconnect() == [0, 1, 2]


def test_a_thread_that_is_ended_while_it_connects_is_replaced(stage: Stage) -> None:
    stage.peers[0].raises = SystemExit()  # type: ignore[assignment]
    with pytest.raises(SystemExit):
        stage.reconnect()
    stage.peers[0].raises = None
    stage.set.adopt()
    assert stage.reconnect() == [0, 1, 2]
