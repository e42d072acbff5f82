"""Who a server is, and when it may vote."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

import pytest
from redis.connection import UnixDomainSocketConnection

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import Event, NodeDown, NodeRefuses, NodeUp
from celery_redlock.redlock.transport import node as node_module
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


# ---- a server that refuses the login, or the database


@pytest.mark.parametrize("rest", ["/2", "?protocol=3"])
def test_a_sentinel_that_refuses_is_refused_as_one(rest: str) -> None:
    refusal = b"-ERR unknown command\r\n"
    with FakeNode(redis_mode="sentinel") as server:
        server.answers |= {"SELECT": refusal, "HELLO": refusal, "SCRIPT": refusal}
        node = Node(server.url + rest, FakeClock(), 60.0, GUARD, lambda event: None)
        with pytest.raises(ConfigurationError, match="is a Sentinel"):
            node.connect()
        assert node.misconfigured


FULL = b"-ERR max number of clients reached\r\n"
ITS_WORDS = r"^ERR max number of clients reached$"


@pytest.mark.parametrize(
    ("rest", "closed", "last", "reason"),
    [
        ("?db=2", 2, FULL, ITS_WORDS),
        ("?password=secret", 1, FULL, ITS_WORDS),
        ("?password=secret", 1, b"-NOAUTH Authentication required.\r\n", "Broken pipe"),
    ],
)
def test_words_before_the_login_are_the_reason_for_a_hang_up(
    monkeypatch: pytest.MonkeyPatch, rest: str, closed: int, last: bytes, reason: str
) -> None:
    connect: Callable[..., socket.socket] = UnixDomainSocketConnection._connect
    ends: list[socket.socket] = []

    def connect_and_refuse(self: UnixDomainSocketConnection) -> socket.socket:
        connected = connect(self)
        ends.append(listener.accept()[0])
        ends[-1].sendall(FULL if len(ends) <= closed else last)
        if len(ends) <= closed:
            ends[-1].close()
        return connected

    monkeypatch.setattr(UnixDomainSocketConnection, "_connect", connect_and_refuse)
    with TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/s")
        listener.listen()
        node = Node(f"unix://{directory}/s{rest}", FakeClock(), 60.0, GUARD, lambda event: None)
        with pytest.raises(ConnectionError, match=reason):
            node.connect()
    ends[-1].close()


def test_the_refusal_of_another_server_is_the_reason() -> None:
    with FakeNode() as server:
        server.answers["SELECT"] = b"-ERR DB index is out of range\r\n"
        node = Node(f"{server.url}/99", FakeClock(), 60.0, GUARD, lambda event: None)
        for _ in range(2):
            with pytest.raises(ConnectionError, match="DB index is out of range"):
                node.connect()
            server.answers["INFO"] = b"-NOAUTH Authentication required.\r\n"
        assert node.misconfigured is None


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


def test_failures_during_one_pause_lengthen_it_once(stage: Stage) -> None:
    for _ in range(16):
        stage.node.failed("refused")
    assert stage.node.retry_at - stage.clock.now() <= 0.1
    stage.clock.move(0.11)
    stage.node.failed("refused")
    assert 0.1 <= stage.node.retry_at - stage.clock.now() <= 0.2


def test_an_attempt_keeps_channels_without_a_quorum_waiting(stage: Stage) -> None:
    stage.node.failed("refused")
    stage.clock.move(1)
    stage.node.attempt_begins(stage.clock.now())
    assert stage.node.retry_short_at == stage.clock.now() + BACKOFF_MAX_S
    stage.node.failed("refused")
    assert stage.node.retry_short_at - stage.clock.now() <= 0.5
    stage.votes_in()
    assert stage.node.retry_short_at == 0.0


# ---- servers that can't be nodes


def unfit(stage: Stage) -> None:
    with pytest.raises(ConfigurationError):
        stage.node.connect()


def test_a_node_that_never_was_fit_is_misconfigured(stage: Stage) -> None:
    stage.server.info["role"] = "slave"
    unfit(stage)
    assert stage.node.misconfigured
    stage.server.info["role"] = "master"
    stage.votes_in()
    assert stage.node.misconfigured is None


def test_connections_from_before_a_node_was_unfit_are_told_from_later_ones(stage: Stage) -> None:
    """Those that were idle meanwhile: as a replica it has lost its locks."""
    before = stage.node.connect()
    stage.server.info["role"] = "slave"
    unfit(stage)
    assert before.history != stage.node.history
    stage.server.info["role"] = "master"
    stage.server.info["master_replid"] = "another"
    after = stage.node.connect()
    assert before.history != stage.node.history == after.history


def test_a_node_that_becomes_unfit_is_down_and_told_once(stage: Stage) -> None:
    stage.votes_in()
    stage.node.failed("it became a replica")
    stage.server.info["role"] = "slave"
    for _ in range(3):
        unfit(stage)
        stage.node.failed("timed out")
    assert stage.node.misconfigured is None
    downs = [event for event in stage.seen if isinstance(event, NodeDown)]
    assert [event.is_unfit for event in downs] == [False, True]
    assert "is a slave" in downs[1].error
    stage.server.info["role"] = "master"
    stage.votes_in()
    assert isinstance(stage.seen[-1], NodeUp)


def test_a_child_knows_the_nodes_that_its_parent_accepted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.votes_in()
    monkeypatch.setattr(node_module, "_inherited", set())
    node_module._inherit()
    stage.node = stage.new_node()
    stage.server.info["role"] = "slave"
    unfit(stage)
    assert stage.node.misconfigured is None


class Pair:
    """Two nodes, each at a server of its own."""

    def __init__(self, first: FakeNode, second: FakeNode) -> None:
        self.servers = first, second
        self.clock = FakeClock()
        self.nodes = tuple(
            Node(one.url, self.clock, 60.0, 0.0, lambda event: None) for one in self.servers
        )
        for node in self.nodes:
            node.peers = self.nodes

    def connect(self, number: int) -> None:
        self.nodes[number].connect().disconnect()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with FakeNode() as first, FakeNode() as second:
        yield Pair(first, second)


def test_two_names_of_one_server_are_both_misconfigured(pair: Pair) -> None:
    pair.servers[1].info["run_id"] = pair.servers[0].info["run_id"]
    pair.connect(0)
    for number in (1, 0, 1):
        with pytest.raises(ConfigurationError, match="are the same server"):
            pair.connect(number)
        assert all(node.misconfigured for node in pair.nodes)
    pair.servers[1].info["run_id"] = "another"
    pair.connect(1)
    assert not any(node.misconfigured for node in pair.nodes)
    pair.connect(0)


def test_an_address_that_moves_to_a_peer_s_server_is_down(pair: Pair) -> None:
    pair.connect(0)
    pair.connect(1)
    before = pair.nodes[1].run_id, pair.nodes[1].history
    pair.servers[1].info["run_id"] = pair.servers[0].info["run_id"]
    with pytest.raises(ConfigurationError, match="are the same server"):
        pair.connect(1)
    pair.connect(0)
    assert not any(node.misconfigured for node in pair.nodes)
    is_now = pair.nodes[1].run_id, pair.nodes[1].history
    assert is_now == before, "connections to its own server stay"
