"""Who a server is, and when it may vote."""

from __future__ import annotations

import math
import random
import socket
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from redis.connection import UnixDomainSocketConnection

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import Event, NodeDown, NodeRefuses, NodeUp
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.transport import node as node_module
from celery_redlock.redlock.transport.handshake import Server
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.redis_py import Connector
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import FakeNode, bulk

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
    stage.server.info |= {"uptime_in_seconds": 20, "master_replid": "first"}
    assert stage.votes_in() == pytest.approx(GUARD - 20)
    connection = stage.node.connect()
    is_of = connection.run_id, connection.history, connection.identified_at
    assert is_of == (stage.server.info["run_id"], "first", stage.clock.now())
    assert stage.seen == [NodeUp(stage.node.name, cast(float, pytest.approx(GUARD - 20)))]


@pytest.mark.parametrize(
    ("guard_s", "votes_in", "is_read"), [(GUARD, 3.0, True), (0.0, -2.0, False)]
)
def test_an_admission_shortens_the_guard_if_there_is_one(
    stage: Stage, guard_s: float, votes_in: float, is_read: bool
) -> None:
    note = Admission("prefix", (stage.node.name,), stage.node.name, 60.0)
    stage.server.info["uptime_in_seconds"] = 2
    stage.server.answers["GET"] = bulk(str(note.admitting(str(stage.server.info["run_id"]))[2]))
    stage.node = Node(stage.server.url, stage.clock, 60.0, guard_s, stage.seen.append, 5.0, note)
    assert stage.votes_in() == pytest.approx(votes_in)
    assert ("GET" in stage.server.heard_names()) == is_read


def test_the_last_servers_of_a_node_are_known(stage: Stage) -> None:
    for number in (0, *range(18), 17):
        stage.node._accept(Server(str(number), "1", 0.0))
    assert stage.node.run_ids == tuple(map(str, range(2, 18)))


def test_a_url_that_cannot_be_used_is_named_by_its_address() -> None:
    with pytest.raises(ConfigurationError, match=r"^node redis-a:6379: the path of its URL"):
        Node("redis://:secret@redis-a/bank", FakeClock(), 60.0, GUARD, lambda event: None)


# ---- a server that refuses the login, or the database


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Connections of redis-py that are made, each once it is made."""
    made: list[Any] = []
    make = Connector.new_connection

    def note(self: Connector, **options: bool) -> Any:
        made.append(make(self, **options))
        return made[-1]

    monkeypatch.setattr(Connector, "new_connection", note)
    return made


@pytest.mark.parametrize("is_spare", [False, True])
def test_a_server_without_an_identity_is_left(
    stage: Stage, made: list[Any], is_spare: bool
) -> None:
    del stage.server.info["role"]
    with pytest.raises(ConnectionError, match="its INFO lacks role"):
        stage.node.connect(is_spare=is_spare)
    assert stage.node.error == (None if is_spare else "its INFO lacks role")
    assert [one._sock for one in made] == [None]


def test_a_node_that_is_down_is_asked_once(made: list[Any]) -> None:
    node = Node("redis://127.0.0.1:1", FakeClock(), 60.0, GUARD, lambda event: None)
    with pytest.raises(ConnectionError):
        node.connect()
    assert node.error
    assert len(made) == 1


@pytest.mark.parametrize("rest", ["/2", "?protocol=3"])
def test_a_sentinel_that_refuses_is_refused_as_one(made: list[Any], rest: str) -> None:
    refusal = b"-ERR unknown command\r\n"
    with FakeNode(redis_mode="sentinel") as server:
        server.answers |= {"SELECT": refusal, "HELLO": refusal, "SCRIPT": refusal}
        node = Node(server.url + rest, FakeClock(), 60.0, GUARD, lambda event: None)
        with pytest.raises(ConfigurationError, match="is a Sentinel"):
            node.connect()
        assert node.misconfigured
        assert [one._sock for one in made] == [None, None]


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
        for said in (b"", b"-NOAUTH Authentication required.\r\n", b"-ERR unknown command\r\n"):
            server.answers |= {"INFO": said} if said else {}
            with pytest.raises(ConnectionError, match="DB index is out of range"):
                node.connect()
        assert node.misconfigured is None
    assert node.database == 99


# ---- whether it writes


def test_a_refusal_is_told_again_after_a_minute_without_one(stage: Stage) -> None:
    for _ in range(100):
        stage.node.refuses("OOM")
        stage.clock.move(60)
    assert stage.seen == [NodeRefuses(stage.node.name, "OOM")]
    stage.clock.move(1)
    stage.node.refuses("OOM")
    assert len(stage.seen) == 2


def test_a_node_that_writes_again_is_told_once(stage: Stage) -> None:
    stage.node.writes(0.0)
    assert stage.seen == []
    stage.node.refuses("OOM")
    stage.node.writes(3.0)
    stage.node.writes(2.0)
    stage.node.refuses("OOM")
    refuses = NodeRefuses(stage.node.name, "OOM")
    assert stage.seen == [refuses, NodeUp(stage.node.name, 3.0), refuses]


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
    for later, is_long_ago in ((60, False), (1, True)):
        assert stage.node.retry_at - stage.clock.now() >= BACKOFF_MAX_S / 2
        stage.clock.move(later)
        stage.votes_in()
        stage.node.failed("once")
        assert (stage.node.retry_at - stage.clock.now() < 1) == is_long_ago


def test_an_attempt_at_a_node_that_is_up_keeps_nobody_waiting(stage: Stage) -> None:
    stage.votes_in()
    stage.node.attempt_begins(stage.clock.now())
    assert stage.node.retry_at == 0.0
    assert stage.seen == [NodeUp(stage.node.name, 0.0)]


@pytest.mark.parametrize(("of_a_pause", "part"), [(0, 0.5), (1, 1.0)])
def test_pauses_are_doubled_up_to_their_limits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, of_a_pause: int, part: float
) -> None:
    """Each is as long, or half as long, as it may be."""
    monkeypatch.setattr(random, "uniform", lambda *limits: limits[of_a_pause])
    node, pauses = stage.node, []
    for _ in range(1100):
        node.failed("refused")
        now = stage.clock.now()
        pauses.append((node.retry_at - now, node.retry_short_at - now))
        stage.clock.time = node.retry_at if len(pauses) > 1 else now
    longest = [(0.1, 0.0), (0.1, 0.1), (0.2, 0.2), (0.4, 0.4), (0.8, 0.8), (1.6, 1.6), (3.2, 3.2)]
    for pause, (long, short) in zip(pauses, longest + [(5.0, 5.0)] * 1093, strict=True):
        assert pause == pytest.approx((long * part, min(short * part, 0.5)))


def test_the_end_of_a_connection_is_followed_by_a_short_pause(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of_a_pause, pause in enumerate((0.05, 0.1)):
        monkeypatch.setattr(random, "uniform", lambda *limits, n=of_a_pause: limits[n])
        stage.node.connect().fail("the server closed the connection")
        assert stage.node.retry_at == stage.clock.now() + pause
        assert stage.node.error is None
    stage.node.failed("refused")
    before = stage.node.retry_at
    stage.clock.move(1)
    stage.node._ended("its end is noticed later", blames_node=False)
    assert stage.node.retry_at == before


def test_failures_during_one_pause_lengthen_it_once(stage: Stage) -> None:
    for _ in range(16):
        stage.node.failed("refused")
    assert stage.node.retry_at - stage.clock.now() <= 0.1
    stage.clock.move(0.11)
    stage.node.failed("refused")
    assert 0.1 <= stage.node.retry_at - stage.clock.now() <= 0.2
    assert stage.seen == [NodeDown(stage.node.name, "refused", False)]


def test_an_attempt_keeps_channels_without_a_quorum_waiting(stage: Stage) -> None:
    stage.node.failed("refused")
    stage.clock.move(1)
    stage.node.attempt_begins(stage.clock.now())
    assert stage.node.retry_short_at == stage.clock.now() + BACKOFF_MAX_S
    stage.node.failed("refused")
    assert stage.node.retry_short_at - stage.clock.now() <= 0.5
    stage.node.spares.began_at = stage.clock.now()
    stage.votes_in()
    assert (stage.node.retry_short_at, stage.node.spares.began_at) == (0.0, -math.inf)
    stage.node.failed("refused")
    assert stage.node.retry_short_at == stage.clock.now()


# ---- servers that can't be nodes


def unfit(stage: Stage) -> None:
    with pytest.raises(ConfigurationError):
        stage.node.connect()


def test_a_node_that_never_was_fit_is_misconfigured(stage: Stage, made: list[Any]) -> None:
    stage.server.info["role"] = "slave"
    stage.node.failed("refused")
    unfit(stage)
    assert [event.is_unfit for event in stage.seen if isinstance(event, NodeDown)] == [False, True]
    assert stage.node.misconfigured
    assert made[0]._sock is None
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
    for _ in range(2):
        stage.server.info["role"] = "master"
        stage.votes_in()
        assert isinstance(stage.seen[-1], NodeUp)
        stage.node.failed("it became a replica")
        stage.server.info["role"] = "slave"
        for _ in range(3):
            unfit(stage)
            stage.node.failed("timed out")
    assert stage.node.misconfigured is None
    downs = [event for event in stage.seen if isinstance(event, NodeDown)]
    assert [event.is_unfit for event in downs] == [False, True, False, True]
    assert "is a slave" in downs[1].error


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


def test_a_restart_guard_is_that_of_an_address(pair: Pair) -> None:
    def votes_in(server: FakeNode) -> float:
        connection = Node(server.url, SystemClock(), 60.0, GUARD, lambda event: None).connect()
        connection.disconnect()
        return connection.votes_from - SystemClock().now()

    assert max(map(votes_in, pair.servers)) < 0
    pair.servers[0].info["run_id"] = "another"
    assert [votes_in(server) > 0 for server in pair.servers] == [True, False]


def test_two_names_of_one_server_are_both_misconfigured(pair: Pair) -> None:
    pair.servers[1].info["run_id"] = pair.servers[0].info["run_id"]
    pair.connect(0)
    for number in (1, 0, 1):
        with pytest.raises(ConfigurationError, match="are the same server"):
            pair.connect(number)
        assert all(node.misconfigured for node in pair.nodes)
    pair.servers[1].info["run_id"] = "another"
    pair.connect(1)
    assert [node.misconfigured for node in pair.nodes] == [None, None]
    pair.connect(0)


def test_a_replica_stays_refused_when_a_peer_is_accepted(pair: Pair) -> None:
    pair.servers[0].info["role"] = "slave"
    with pytest.raises(ConfigurationError, match=f"node {pair.nodes[0].name} is a slave"):
        pair.connect(0)
    pair.connect(1)
    assert pair.nodes[0].misconfigured


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
