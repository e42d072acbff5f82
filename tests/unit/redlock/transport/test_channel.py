"""A channel over socket pairs, whose other ends say exactly what a test wants."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from operator import itemgetter
from types import NoneType
from typing import Any, cast

import hiredis
import pytest

from celery_redlock.redlock.events import Event, NodeRefuses
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport import channel as channel_module
from celery_redlock.redlock.transport import connection_set, lingering
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.in_flight import Replies
from celery_redlock.redlock.transport.lingering import close_lingering
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import FakeClock, LeapingClock, StandingClock
from tests.support.faults.strikes import Struck, strikes

NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
LOADED = b"$1\r\nx\r\n" * 4
COMMAND = ("EVALSHA", "sha", 0)


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()

    __del__ = disconnect  # as redis-py's


class Peer(Node):
    """A node that is played by the test.

    Attributes:
        end: The server's end of the latest connection.
        connects: What a connection attempt does.
    """

    def __init__(self, name: str, clock: LeapingClock, seen: Callable[[Event], None]) -> None:
        super().__init__(f"redis://{name}:1", clock, 60.0, 0.0, seen)
        self.connects: Callable[[], NodeConnection] = self.connection
        self.attempts = 0
        self.ends: list[socket.socket] = []
        self.is_over = False

    def connect(self, *, is_spare: bool = False) -> NodeConnection:
        self.attempts += 1
        return self.connects()

    def connection(self) -> NodeConnection:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        if self.is_over:  # the test has ended before this thread came here
            theirs.close()
        connection = NodeConnection(Connection(ours), votes_from=0.0, on_end=self._ended)
        connection.identified_at = self.clock.now()
        return connection

    def refuse(self) -> NodeConnection:
        self.failed("refused")
        raise ConnectionError

    @property
    def end(self) -> socket.socket:
        return self.ends[-1]

    def says(self, *replies: bytes) -> None:
        """Answer, be it in advance: replies are told apart by their order alone."""
        self.end.sendall(b"".join(replies))

    def heard(self) -> list[list[bytes]]:
        """The commands that have come in since the last time."""
        reader = hiredis.Reader()
        self.end.setblocking(False)
        try:
            while data := self.end.recv(1 << 20):
                reader.feed(data)
        except BlockingIOError:
            pass
        self.end.setblocking(True)
        commands = iter(lambda: cast(Any, reader.gets()), False)
        return list(commands)


class Stage:
    """A channel to three peers."""

    def __init__(self, count: int = 3) -> None:
        self.clock = LeapingClock()
        self.seen: list[Event] = []
        self.peers = [Peer(f"node-{n}", self.clock, self.seen.append) for n in range(count)]
        self.channels: list[Channel] = []
        self.pool = Pool(self.new_channel)
        self.channel = self.new_channel()
        self.channel.prepare()

    def new_channel(self) -> Channel:
        channel = Channel(self.peers, self.clock, node_timeout=30.0, connect_timeout=60.0)
        self.channels.append(channel)
        return channel

    def ask(
        self, needed: int = 3, among: Sequence[int] = (0, 1, 2), timeout: float | None = None
    ) -> Replies[object]:
        """Return all replies as soon as so many have come in."""

        def is_decided(replies: Replies[object]) -> bool:
            return sum(reply is not None for reply in replies) >= needed

        return self.channel.ask([COMMAND], itemgetter(0), is_decided, among, timeout)

    def ask_batch(self, count: int) -> Replies[list[object]]:
        def is_decided(replies: Replies[list[object]]) -> bool:
            return None not in replies

        commands = [("EVALSHA", "sha", 0, number) for number in range(count)]
        return self.channel.ask(commands, lambda raws: raws, is_decided, (0, 1, 2))

    def close(self) -> None:
        # Of each channel there was: a strike may leave one that nobody has any more.
        for channel in self.channels:
            channel.close()
        for peer in self.peers:
            peer.is_over = True
            for end in peer.ends:
                end.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def connection_to(stage: Stage, index: int) -> NodeConnection:
    connection = stage.channel._connections.by_node[index]
    assert connection
    return connection


def say_to_all(stage: Stage, *replies: bytes) -> None:
    for peer in stage.peers:
        peer.says(*replies)


# ---- rounds


def test_all_nodes_get_one_request_and_replies_keep_their_node(stage: Stage) -> None:
    for number, peer in enumerate(stage.peers):
        peer.says(b":%d\r\n" % number)
    assert stage.ask() == [0, 1, 2]
    assert [peer.heard() for peer in stage.peers] == [[[b"EVALSHA", b"sha", b"0"]]] * 3


def test_nobody_is_waited_for_once_it_is_decided(stage: Stage) -> None:
    stage.peers[0].says(b":0\r\n")
    stage.peers[2].says(b":2\r\n")
    assert stage.ask(needed=2) == [0, None, 2]


def test_only_those_are_asked_who_are_to_be(stage: Stage) -> None:
    stage.peers[1].says(b":1\r\n")
    assert stage.ask(needed=3, among=[1]) == [
        Failed("skipped: it owes replies"), 1, Failed("skipped: it owes replies"),
    ]  # fmt: skip
    assert [len(peer.heard()) for peer in stage.peers] == [0, 1, 0]


def test_an_owed_reply_is_never_taken_for_the_next_one(stage: Stage) -> None:
    for number in range(10):
        stage.peers[0].says(b":%d\r\n" % number)
        stage.peers[1].says(b":%d\r\n" % number)
        assert stage.ask(needed=2) == [number, number, None]
    stage.peers[2].says(b"".join(b":%d\r\n" % number for number in range(10)))
    say_to_all(stage, b":10\r\n")
    assert stage.ask() == [10, 10, 10]
    assert connection_to(stage, 2).sent == connection_to(stage, 2).received == 11


def test_who_is_late_has_failed_and_its_reply_is_read_off_later(stage: Stage) -> None:
    stage.channel._node_timeout = 0.01
    stage.peers[0].says(b":0\r\n")
    stage.peers[1].says(b":1\r\n")
    assert stage.ask() == [0, 1, Failed("timed out after 10 ms")]
    stage.channel._node_timeout = 30.0
    stage.peers[2].says(b":99\r\n")
    say_to_all(stage, b":5\r\n")
    assert stage.ask() == [5, 5, 5]


def test_replies_that_arrived_in_time_count_for_a_late_thread(stage: Stage) -> None:
    class Nap(LeapingClock):
        def now(self) -> float:
            self.leap(1000)
            return super().now()

    stage.channel._clock = Nap()
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]


def test_a_batch_is_one_write_and_the_list_of_its_replies(stage: Stage) -> None:
    for number, peer in enumerate(stage.peers):
        peer.says(b":%d\r\n$%d\r\n%b\r\n-ERR no\r\n" % (number, len(READONLY), READONLY.encode()))
    replies = stage.ask_batch(3)
    for number, reply in enumerate(replies):
        assert isinstance(reply, list)
        assert reply[:2] == [number, READONLY.encode()]
        assert isinstance(reply[2], hiredis.ReplyError)
    assert [len(peer.heard()) for peer in stage.peers] == [3, 3, 3]
    assert stage.seen == [], "it is no refusal to write, and a value is no error"


def test_what_the_socket_does_not_take_is_sent_when_it_does(stage: Stage) -> None:
    # Asked for more than a socket pair holds; the peers read only while they are waited for.
    for peer in stage.peers:
        peer.end.settimeout(60)
    connection = connection_to(stage, 0)
    payload = b"*1\r\n$4\r\nPING\r\n" * 100_000
    connection.send(payload, 100_000, 0.0)
    assert connection.is_blocked
    taken = 0
    while taken < len(payload):
        taken += len(stage.peers[0].end.recv(1 << 20))
        if connection.is_blocked:
            connection.flush()
    assert taken == len(payload)
    assert connection_to(stage, 0)._outbox == b""


def test_a_request_of_any_size_reaches_a_slow_node(stage: Stage) -> None:
    # As a batch of leases with long keys does through a network of small buffers.
    connection = connection_to(stage, 0)
    connection.send(b"*1\r\n$4\r\nPING\r\n" * 300_000, 300_000, 0.0)
    connection.flush()
    assert connection.closed is None
    stage.peers[0].end.recv(1 << 16)
    connection.flush()
    assert connection.closed is None


def test_nothing_is_written_past_the_rest_of_a_request(stage: Stage) -> None:
    connection, end = connection_to(stage, 0), stage.peers[0].end
    end.setblocking(False)
    sent, taken = b"", b""
    while not connection.is_blocked:
        sent += b"x" * 1000
        connection.send(b"x" * 1000, 1, 0.0)
    while len(taken) < len(sent) - 1000:  # the socket has room for the rest, and a part of the next
        taken += end.recv(1 << 16)
    for payload in (b"y" * 900_000, b"z"):
        sent += payload
        connection.send(payload, 1, 0.0)
        taken += end.recv(1 << 16)  # there is room again
    while len(taken) < len(sent):
        with contextlib.suppress(BlockingIOError):
            taken += end.recv(1 << 16)
        connection.flush()
    assert taken == sent


def test_a_node_that_reads_nothing_is_given_up(stage: Stage) -> None:
    connection = connection_to(stage, 0)
    connection.send(b"*1\r\n$4\r\nPING\r\n" * 300_000, 300_000, 0.0)
    assert stage.ask(needed=1) == [Failed("it reads nothing any more"), None, None]
    assert stage.channel.everyone() == [1, 2]
    assert len(connection._outbox) <= 300_000 * 14


def test_a_round_with_a_time_of_its_own_ends_with_it(stage: Stage) -> None:
    stage.peers[0].says(b":0\r\n")
    replies = stage.channel.ask(
        [COMMAND], lambda raws: raws[0], lambda _: False, (0, 1, 2), timeout=0.0
    )
    assert replies == [0, Failed("timed out after 0 ms"), Failed("timed out after 0 ms")]


def test_the_last_look_at_the_sockets_takes_no_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> Sequence[int]:
        waits.append(seconds)
        stage.clock.leap(seconds)
        return ()

    monkeypatch.setattr(stage.channel._connections.poller, "wait", wait)
    assert stage.ask(timeout=8.0) == [Failed("timed out after 8000 ms")] * 3
    assert waits == [8.0, 0.0]
    assert not stage.channel.is_unused(8.0)


# ---- scripts that were forgotten


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_a_batch_that_lacked_its_script_is_repeated_whole(stage: Stage, known: int) -> None:
    for _ in range(5):  # replies are counted from the connection's beginning on
        say_to_all(stage, b":1\r\n")
        stage.ask()
    say_to_all(
        stage, b":1\r\n" * known, NOSCRIPT * (4 - known), LOADED, b":5\r\n:6\r\n:7\r\n:8\r\n"
    )
    if known < 4:
        assert stage.ask_batch(4) == [[5, 6, 7, 8]] * 3
    for peer in stage.peers:
        names = [command[0] for command in peer.heard()]
        assert names == [b"EVALSHA"] * 9 + [b"SCRIPT"] * 4 + [b"EVALSHA"] * 4


def test_a_repeated_batch_arrives_though_the_socket_is_full(stage: Stage) -> None:
    # Node 0 has read nothing yet when it says that it has forgotten the script.
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n" * 3000)
    connection = connection_to(stage, 0)
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    read = bytearray()
    end = stage.peers[0].end
    end.setblocking(False)
    wait = stage.channel._connections.poller.wait

    def wait_and_serve(seconds: float) -> Sequence[int]:
        with contextlib.suppress(BlockingIOError):
            read.extend(end.recv(2048))
        if not served and read.count(b"EVALSHA") == 3000:
            served.append(1)
            end.sendall(NOSCRIPT * 3000)
        elif len(served) == 1 and read.count(b"EVALSHA") == 6000:
            served.append(2)
            end.sendall(LOADED + b":5\r\n" * 3000)
        return wait(min(seconds, 0.001))

    served: list[int] = []
    stage.channel._connections.poller.wait = wait_and_serve  # type: ignore[method-assign]
    assert stage.ask_batch(3000)[0] == [5] * 3000


def test_a_missing_script_of_an_owed_reply_is_only_loaded(stage: Stage) -> None:
    """The request is not repeated."""
    for number in (0, 1):
        stage.peers[number].says(b":1\r\n")
    assert stage.ask(needed=2) == [1, 1, None]
    stage.peers[2].says(NOSCRIPT)
    say_to_all(stage, b":2\r\n")
    stage.peers[2].says(LOADED)
    assert stage.ask() == [2, 2, 2]
    names = [command[0] for command in stage.peers[2].heard()]
    assert names == [b"EVALSHA", b"EVALSHA"] + [b"SCRIPT"] * 4


def test_who_lacks_its_scripts_owes_from_then_on(stage: Stage) -> None:
    stage.channel._node_timeout = 1.0
    stage.peers[0].says(NOSCRIPT)
    stage.ask(among=(0,), timeout=0.0)
    stage.clock.leap(0.5)
    assert stage.channel.voters() == [0, 1, 2]
    stage.clock.leap(0.6)
    assert stage.channel.voters() == [1, 2]
    stage.ask(needed=0, among=(1,))
    stage.peers[1].says(NOSCRIPT)
    stage.clock.leap(1.1)
    assert stage.channel.voters() == [1, 2], "read between rounds"
    assert len(stage.peers[1].heard()) == 5


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_write_that_ended_later_is_not_waited_for(stage: Stage, asks_again: bool) -> None:
    def ask(count: int) -> None:
        commands = [("EVALSHA", "sha", 0, number) for number in range(count)]
        stage.channel.ask(commands, lambda raws: raws, lambda _: True, (0,))

    connection = connection_to(stage, 0)
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ask(3000)
    assert connection_to(stage, 0).is_blocked
    while connection_to(stage, 0).is_blocked:
        stage.peers[0].end.recv(1 << 20)
        ask(1) if asks_again else stage.channel.voters()
    unread = select.poll()  # for any descriptor
    unread.register(stage.peers[0].end, select.POLLIN)
    while unread.poll(0):
        stage.peers[0].end.recv(1 << 20)
    # Else whoever reads until there is nothing more would read for ever.
    assert list(stage.channel._connections.poller.wait(0.0)) == []


def test_who_has_not_taken_all_that_was_written_does_not_vote(stage: Stage) -> None:
    connection_to(stage, 0)._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    commands = [("EVALSHA", "sha", 0, number) for number in range(3000)]
    stage.channel.ask(commands, lambda raws: raws, lambda _: True, (0,))
    assert stage.channel.voters() == [1, 2]


# ---- connections that end


READONLY = "READONLY You can't write against a read only replica."


@pytest.mark.parametrize(
    "error",
    [
        READONLY,
        f"ERR Error running script (call to f_1): @user_script:32: -{READONLY}",  # Redis 6.2
    ],
)
def test_who_became_a_replica_is_left_and_blamed(stage: Stage, error: str) -> None:
    stage.peers[0].says(f"-{error}\r\n".encode())
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask()
    assert str(replies[0]) == error
    assert replies[1:] == [1, 1]
    assert stage.channel.everyone() == [1, 2]
    assert stage.peers[0].error == "it became a replica"


OOM = "OOM command not allowed when used memory > 'maxmemory'."


@pytest.mark.parametrize(
    "error",
    [
        OOM,
        f"ERR Error running script (call to f_1): @user_script:18: -{OOM}",  # Redis 6.2
        "NOREPLICAS Not enough good replicas to write.",
        "NOPERM No permissions to access a key",
        "ERR The user executing the script can't run this command or subcommand script: 49",
        "ERR ACL failure in script: User l has no permissions to run the 'set' command",
        OOM.ljust(1000, "!"),
    ],
)
def test_who_refuses_to_write_is_told_of_once(stage: Stage, error: str) -> None:
    for _ in range(3):
        stage.peers[0].says(f"-{error}\r\n".encode())
        for number in (1, 2):
            stage.peers[number].says(b":1\r\n")
        stage.ask()
    assert stage.seen == [NodeRefuses(stage.peers[0].name, error[:200])]
    assert stage.channel.everyone() == [0, 1, 2]


def test_who_hangs_up_has_failed_and_the_others_count(stage: Stage) -> None:
    stage.peers[0].end.close()
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask()
    assert isinstance(replies[0], Failed)
    assert replies[1:] == [1, 1]
    assert stage.channel.everyone() == [1, 2]


def test_a_write_that_fails_ends_the_connection_for_good(stage: Stage) -> None:
    connection = connection_to(stage, 0)
    stage.peers[0].end.close()
    stage.peers[1].says(b":1\r\n")
    stage.peers[2].says(b":1\r\n")
    replies = stage.ask()
    assert connection.closed
    assert replies == [Failed(connection.closed), 1, 1]
    assert stage.channel._connections.by_node[0] is None
    assert connection.fd not in stage.channel._connections.index_of


def test_a_silent_node_is_given_up_however_busy_the_channel_is(stage: Stage) -> None:
    for _ in range(120):
        stage.channel.prepare()
        for peer in stage.peers[:2]:
            peer.says(b":1\r\n")
        stage.ask(needed=2, among=stage.channel.everyone())
        stage.clock.leap(0.05)
    assert "it has not answered for 5 s" in {getattr(event, "error", None) for event in stage.seen}


def test_an_end_of_connection_is_seen_after_owed_replies(stage: Stage) -> None:
    for number in (0, 1):
        stage.peers[number].says(b":1\r\n")
    stage.ask(needed=2)
    stage.peers[2].says(b":1\r\n")
    stage.peers[2].end.close()
    old = connection_to(stage, 2)
    stage.clock.leap(1)
    stage.channel.prepare()
    assert old.closed
    assert stage.channel._connections.by_node[2] is not old


def test_a_connection_that_broke_while_idle_is_not_used(stage: Stage) -> None:
    def look_after() -> None:
        stage.clock.leap(1)
        stage.channel.prepare()

    stage.peers[0].end.close()
    look_after()
    look_after()
    eventually(stage.channel._connections._arrivals.qsize, "it is made anew in the background")
    stage.peers[0].end.close()
    look_after()
    assert stage.channel.everyone() == [1, 2]
    look_after()
    eventually(stage.channel._connections._arrivals.qsize)
    look_after()
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    assert stage.peers[0].attempts == 3


def test_a_connection_to_the_server_before_is_used_no_more(stage: Stage) -> None:
    stage.peers[0].run_id = "of the server that took over, met by another channel"
    stage.clock.leap(1)
    stage.channel.prepare()
    assert stage.channel.everyone() == [1, 2]


@pytest.mark.parametrize("junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\1\2\3", b"*x\r\n"])
def test_who_talks_nonsense_is_hung_up_on_and_the_others_count(stage: Stage, junk: bytes) -> None:
    stage.peers[0].says(junk)
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask()
    assert isinstance(replies[0], Failed)
    assert "no Redis reply" in replies[0].error
    assert replies[1:] == [1, 1]
    assert stage.channel.everyone() == [1, 2]


@pytest.mark.parametrize("surplus", [1, 1000])
def test_who_says_more_than_was_asked_is_hung_up_on(stage: Stage, surplus: int) -> None:
    stage.peers[0].says(b":1\r\n" * (1 + surplus))
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    assert stage.ask() == [Failed("it sent more replies than it was asked for"), 1, 1]
    assert stage.channel.everyone() == [1, 2]
    assert stage.peers[0].error == "it sent more replies than it was asked for"


@pytest.mark.parametrize("said", [b":1\r\n", b"*2\r\n:1\r\n:2\r\n", b"+OK\r\n", b"$5\r\nhello\r\n"])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_who_says_something_unasked_is_hung_up_on(stage: Stage, said: bytes, cut: int) -> None:
    for piece in (said[:cut], said[cut:]):
        stage.peers[0].says(piece)
        stage.clock.leap(1)
        stage.channel.prepare()
    assert stage.channel.everyone() == [1, 2]


@pytest.mark.parametrize(
    "header", [b"*1000000\r\n", b"~999999999\r\n", b"%2147483647\r\n", b"*1\r\n*1000000000\r\n"]
)
def test_a_reply_of_a_million_parts_is_not_begun(stage: Stage, header: bytes) -> None:
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    connection = connection_to(stage, 0)
    for part in (b":1\r\n", *(header[at : at + 1] for at in range(len(header)))):
        connection.sent += 1
        stage.peers[0].says(part)
        connection.receive(0.0)
    assert connection.closed == "no Redis reply: it announces too many parts"


@pytest.mark.parametrize("header", [b"*1000000\r\n", b"%1000000"])
@pytest.mark.parametrize(
    "before",
    [
        b"$10\r\n\r\n*1000000\r\n",
        b"$2\r\n$9\r\n",
        b"$-1\r\n",
        b"+OK\r\n",
        b"*2\r\n$1\r\n\n\r\n",
        b"_\r\n",
    ],
)
@pytest.mark.parametrize("cut", [0, 3, 6, 100])
def test_a_reply_of_a_million_parts_is_found_behind_values(
    stage: Stage, before: bytes, header: bytes, cut: int
) -> None:
    connection = connection_to(stage, 0)
    connection.sent += 2
    for part in (before[:cut], before[cut:] + header):
        stage.peers[0].says(part)
        connection.receive(0.0)
    assert connection.closed == "no Redis reply: it announces too many parts"


VALUES = [
    b"id*1000000@host",
    b"id\n*1000000\r\n@host",
    b"\r\n%1000000\r\n",
    b"~1000000\r\n$3\r\n",
    b"\n>1000000",
    b"",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_that_looks_like_a_header_is_a_value(stage: Stage, value: bytes) -> None:
    say_to_all(stage, b"$%d\r\n%s\r\n" % (len(value), value))
    assert stage.ask() == [value] * 3


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "head", [b"", b"*2\r\n=16\r\ntxt:\r\n*1000000\r\n\r\n", b"*3\r\n$-1\r\n+OK\r\n"]
)
def test_a_value_that_comes_in_pieces_is_a_value(stage: Stage, value: bytes, head: bytes) -> None:
    reply = head + b"$%d\r\n%s\r\n" % (len(value), value)
    [whole] = replies_in(reply)
    connection = connection_to(stage, 0)
    for size in (1, 2, 5, 9):
        connection.sent += 3
        seen: list[object] = []
        # Replies follow each other: the pieces end at any byte of them.
        for at in range(0, 3 * len(reply), size):
            stage.peers[0].says((3 * reply)[at : at + size])
            seen += connection.receive(0.0)
        assert str(seen) == str([whole] * 3)
    assert not connection.closed


def test_a_length_of_many_digits_is_no_reply(stage: Stage) -> None:
    connection = connection_to(stage, 0)
    for part in (b"$", b"9" * 5000 + b"\r\n"):
        stage.peers[0].says(part)
        connection.receive(0.0)
    assert connection.closed == "no Redis reply: Bad bulk string length"


def replies_in(data: bytes) -> list[object]:
    reader = hiredis.Reader()
    reader.feed(data)
    return [reader.gets()]


class Streaming:
    """A socket that never runs dry."""

    def __init__(self, stream: Iterator[bytes], fd: int) -> None:
        self.stream = stream
        self.fd = fd
        self.read = 0

    def recv(self, size: int) -> bytes:
        data = next(self.stream)
        assert len(data) == size
        self.read += size
        assert self.read < 1 << 22, "it is read without end"
        return data

    def settimeout(self, seconds: float) -> None:
        pass

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        pass


SIZE = 1 << 16
STREAMS = {
    "replies": itertools.repeat((b":1234\r\n" * SIZE)[:SIZE]),
    "pushes": itertools.repeat((b">1\r\n:1\r\n" * SIZE)[:SIZE]),
    "one bulk": itertools.chain([b"$1000000000\r\n".ljust(SIZE)], itertools.repeat(b" " * SIZE)),
    "nonsense": itertools.repeat(b"x" * SIZE),
    "too many parts": itertools.repeat((b"*1000000\r\n" * SIZE)[:SIZE]),
    "one line": itertools.chain([b"+".ljust(SIZE)], itertools.repeat(b" " * SIZE)),
}


@pytest.mark.parametrize("name", STREAMS)
def test_what_streams_is_read_for_a_bounded_time(name: str) -> None:
    source = Streaming(STREAMS[name], 0)
    blamed: list[bool] = []
    connection = NodeConnection(
        Connection(cast(socket.socket, source)),
        0.0,
        on_end=lambda why, *, blames_node: blamed.append(blames_node),
    )
    connection.sent = connection.received = 1 << 40
    connection.receive(0.0)
    read = source.read
    for _ in range(1000):
        if not connection.closed and not connection.refuse_surplus():
            source.read = 0
            connection.receive(0.0)
    assert read < 1 << 22
    assert connection.closed
    assert blamed == [True]


def answering(stage: Stage, *answers: tuple[int, bytes]) -> Callable[[Replies[object]], bool]:
    """Return a decision that plays one answer each time it is asked, and is made in the end."""
    left = deque(answers)

    def is_decided(_: Replies[object]) -> bool:
        if not left:
            return True
        node, data = left.popleft()
        stage.peers[node].says(data)
        return False

    return is_decided


def test_like_replies_are_parsed_once(stage: Stage) -> None:
    for peer in stage.peers:
        peer.says(b":1\r\n")
    stage.ask()
    parsed = []

    def parse(raws: list[object]) -> object:
        parsed.extend(raws)
        return raws[0]

    in_turn = answering(stage, *[(node, b":5\r\n") for node in range(3)])
    assert stage.channel.ask([COMMAND], parse, in_turn, (0, 1, 2)) == [5, 5, 5]
    assert parsed == [5]


def test_an_owed_reply_is_not_taken_for_one_like_it(stage: Stage) -> None:
    for peer in stage.peers:
        peer.says(b":1\r\n")
    stage.ask()
    for peer in stage.peers[:2]:
        peer.says(b":1\r\n")
    stage.ask(needed=2)
    one_and_the_owed = answering(stage, (0, b":1\r\n"), (2, b":1\r\n"))
    replies = stage.channel.ask([COMMAND], itemgetter(0), one_and_the_owed, (0, 1, 2))
    assert replies == [1, None, None]


def test_a_part_of_a_reply_is_not_taken_for_one_like_it(stage: Stage) -> None:
    for peer in stage.peers:
        peer.says(b":1\r\n")
    stage.ask()
    # As the second part of a string, ":1" and its line end are its text.
    in_parts = answering(stage, (0, b":1\r\n"), (2, b"$4\r\n"), (2, b":1\r\n"), (2, b"\r\n"))
    replies = stage.channel.ask([COMMAND], itemgetter(0), in_parts, (0, 1, 2))
    assert replies == [1, None, b":1\r\n"]


def test_a_look_at_what_comes_by_itself_ends(stage: Stage) -> None:
    looks = []

    def read(now: float) -> bool:
        looks.append(now)
        assert len(looks) < 100
        return True

    stage.channel._read_owed = read  # type: ignore[method-assign]
    stage.clock.leap(1)
    stage.channel.prepare()
    assert looks


# ---- what is owed


def test_who_is_asked_after_a_rest_owes_from_then_on(stage: Stage) -> None:
    stage.channel._node_timeout = 1.0
    stage.clock.leap(100)
    connection_to(stage, 2).send(b"", 1, stage.clock.now())
    stage.clock.leap(0.9)
    assert stage.channel.voters() == [0, 1, 2]
    stage.clock.leap(0.2)
    assert stage.channel.voters() == [0, 1]


def test_a_reply_that_lies_unread_is_not_owed(stage: Stage) -> None:
    """This thread was paused: the node is not suspect."""
    stage.channel._node_timeout = 0.05
    for _ in range(2):
        for peer in stage.peers[:2]:
            peer.says(b":1\r\n")
        assert stage.ask(needed=2) == [1, 1, None]
    stage.peers[2].says(b":1\r\n")
    stage.clock.leap(0.08)
    assert stage.channel.voters() == [0, 1, 2]
    assert connection_to(stage, 2).received == 1


def test_a_write_that_is_taken_by_now_does_not_make_suspect(stage: Stage) -> None:
    connection = connection_to(stage, 0)
    connection._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    commands = [("EVALSHA", "sha", 0, number) for number in range(100)]
    while not connection.is_blocked:
        stage.channel.ask(commands, lambda raws: raws, lambda _: True, (0,))
    stage.peers[0].heard()
    assert stage.channel.voters() == [0, 1, 2]


@pytest.mark.parametrize("suspects", [[1], [1, 2], [0, 1]])
def test_a_guarded_node_makes_no_quorum_for_an_extension(stage: Stage, suspects: list[int]) -> None:
    """It may only be healed: the suspects are needed."""
    stage.channel._node_timeout = 1.0
    connection_to(stage, 2).votes_from = stage.clock.now() + 60.0
    for index in suspects:
        connection_to(stage, index).send(b"", 1, stage.clock.now())
    stage.clock.leap(2.0)
    assert stage.channel.holders() == [0, 1, 2]
    assert stage.channel.voters() == [0, 1]


def test_a_guarded_suspect_is_not_extended_on(stage: Stage) -> None:
    stage.channel._node_timeout = 1.0
    connection_to(stage, 2).votes_from = stage.clock.now() + 60.0
    assert stage.channel.holders() == [0, 1, 2]
    connection_to(stage, 2).send(b"", 1, stage.clock.now())
    stage.clock.leap(2.0)
    assert stage.channel.holders() == [0, 1]
    stage.channel._clock = clock = StandingClock()
    connection_to(stage, 2).votes_from = clock.now() + 60.0
    assert stage.channel.votes_in(2) == pytest.approx(60.0)
    guarded = Failed("restarted or replaced lately, votes in 60.0 s", is_guarded=True)
    assert stage.ask(needed=1, among=(0, 1)) == [None, None, guarded]


def test_who_votes_or_is_not_connected_is_not_waited_for(stage: Stage) -> None:
    stage.channel._connections.drop(1)
    assert (stage.channel.votes_in(0), stage.channel.votes_in(1)) == (0.0, 0.0)
    assert stage.ask(needed=1) == [None, Failed("not connected yet"), None]
    stage.channel.connect_all()
    assert stage.channel.everyone() == [0, 1, 2]


def test_replies_are_pending_until_they_come_or_cannot_come(stage: Stage) -> None:
    assert stage.channel.pending_replies() is None
    stage.ask(needed=0)
    is_pending = stage.channel.pending_replies()
    assert is_pending
    stage.ask(needed=0)
    for number in (0, 1):
        assert is_pending()
        stage.peers[number].says(b":1\r\n")
        connection_to(stage, number).receive(0.0)
    assert is_pending()
    connection_to(stage, 2).fail("the server closed the connection")
    assert not is_pending()
    stage.channel._connections.drop(2)
    assert stage.channel.pending_replies()


def test_every_reply_renews_the_time_for_the_next_one(stage: Stage) -> None:
    stage.channel._node_timeout = 1.0
    connection = connection_to(stage, 2)
    for _ in range(3):
        connection.send(b"", 1, stage.clock.now())
    stage.clock.leap(0.9)
    stage.peers[2].says(b":1\r\n")
    connection.receive(stage.clock.now())
    stage.clock.leap(0.9)
    stage.peers[2].says(b":1")
    assert stage.channel.voters() == [0, 1, 2], "it answers, one after the other"
    connection.receive(stage.clock.now())
    stage.clock.leap(0.2)
    assert stage.channel.voters() == [0, 1]


def test_a_descriptor_that_is_used_again_at_once_is_not_mistaken(stage: Stage) -> None:
    connection = connection_to(stage, 0)
    stage.peers[0].end.close()
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    stage.ask()
    # Somebody else's now, or of the next connection.
    taken = [os.dup(0)]
    while taken[-1] < connection.fd:
        taken.append(os.dup(0))
    for number in (1, 2):
        stage.peers[number].says(b":2\r\n")
    assert stage.ask(needed=3)[1:] == [2, 2]
    assert connection.fd not in stage.channel._connections.index_of
    for descriptor in taken:
        os.close(descriptor)


# ---- connections that turn out to be dead


def hang_up(stage: Stage, *nodes: int) -> None:
    for number in nodes:
        stage.peers[number].end.close()


def test_closed_connections_are_renewed_within_the_attempt(stage: Stage) -> None:
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    hang_up(stage, 0, 1, 2)
    stage.channel.prepare()
    assert all(isinstance(reply, Failed) for reply in stage.ask())
    assert stage.channel.renew()
    say_to_all(stage, b":2\r\n")
    assert stage.ask() == [2, 2, 2]


def test_a_node_that_was_just_told_of_the_release_is_no_suspect(stage: Stage) -> None:
    """Beside one that is down it makes the quorum, with the one that is connected to anew."""
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare()
    hang_up(stage, 1, 2)
    stage.peers[0].says(b":1\r\n")
    stage.ask(needed=1)
    stage.peers[1].connects = stage.peers[1].refuse
    stage.ask(needed=0)  # the release, for which nobody waits
    connect = stage.peers[2].connects

    def connect_as_the_other_answers() -> NodeConnection:
        stage.peers[0].says(b":0\r\n")
        return connect()

    stage.peers[2].connects = connect_as_the_other_answers
    assert stage.channel.renew()
    stage.peers[0].says(b":2\r\n")
    stage.peers[2].says(b":2\r\n")
    assert [reply for reply in stage.ask() if not isinstance(reply, Failed)] == [2, 2]


def test_of_connections_that_break_together_each_is_renewed(stage: Stage) -> None:
    """A third node is down, and one of the two is seen to break before the other."""
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.peers[0].connects = stage.peers[0].refuse
    stage.channel.prepare()
    hang_up(stage, 0, 1)
    assert [type(reply) for reply in stage.ask(needed=1)][:2] == [Failed, Failed]
    connect = stage.peers[1].connects

    def connect_as_the_other_breaks() -> NodeConnection:
        hang_up(stage, 2)
        return connect()

    stage.peers[1].connects = connect_as_the_other_breaks
    stage.ask(needed=0)  # the release
    assert stage.channel.renew()
    for number in (1, 2):
        stage.peers[number].says(b":2\r\n")
    assert stage.ask()[1:] == [2, 2]


@pytest.mark.parametrize("needs_votes", [True, False])
def test_a_guarded_node_is_none_of_the_quorum_to_hear_from(stage: Stage, needs_votes: bool) -> None:
    """Two connections break together, and one is seen to break before the other."""
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare(needs_votes=needs_votes)
    guarded = connection_to(stage, 0)
    guarded.identified_at, guarded.votes_from = stage.clock.now(), stage.clock.now() + 60.0
    hang_up(stage, 1)
    stage.peers[0].says(b":1\r\n")
    assert [type(reply) for reply in stage.ask(needed=2)] == [int, Failed, NoneType]
    connect = stage.peers[1].connects

    def connect_as_the_other_breaks() -> NodeConnection:
        hang_up(stage, 2)
        return connect()

    stage.peers[1].connects = connect_as_the_other_breaks
    assert stage.channel.renew()
    assert stage.peers[2].attempts == 1 + needs_votes


def test_a_quorum_is_heard_from_within_the_node_timeout(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.ask(needed=0)
    stage.channel._clock = clock = FakeClock()
    waits: list[float] = []

    def read(seconds: float, _: None) -> float:
        waits.append(seconds)
        clock.move(seconds)
        return clock.now()

    monkeypatch.setattr(stage.channel, "_read", read)
    stage.channel._hear_from_a_quorum()
    assert waits == [30.0]


def test_who_is_not_heard_from_gets_a_spare(stage: Stage) -> None:
    """It owed nothing for long when the end of another connection cut the round short."""
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare()
    stage.channel._node_timeout = stage.channel._connections._node_timeout = 0.05
    stage.peers[1].connects = stage.peers[1].refuse
    hang_up(stage, 1)
    stage.peers[2].says(b":1\r\n")
    stage.ask(needed=0)
    assert stage.channel.renew()
    assert stage.peers[0].attempts == 2


@pytest.mark.parametrize(
    ("patience", "waited"), [(None, 3.0), (2.0, 2.0), (0.2, 0.2), (0.01, 0.05)]
)
def test_a_wait_for_spares_ends_with_the_patience_of_the_caller(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, patience: float | None, waited: float
) -> None:
    """The keeper has other leases to see to meanwhile."""
    channel = stage.channel
    channel._clock = clock = FakeClock()
    channel._node_timeout, channel._connections.patience = 0.05, 3.0
    channel._patience, channel._prepared_at = patience, clock.now()

    def read(seconds: float, _: None) -> float:
        clock.move(seconds)
        return clock.now()

    monkeypatch.setattr(channel, "_read", read)
    monkeypatch.setattr(channel._connections, "try_spares", lambda *_, **__: True)
    began = clock.now()
    clock.move(0.01)  # looking took so long
    assert channel._wait_for_spares(clock.now())
    assert clock.now() - began == pytest.approx(max(waited, 0.06), abs=0.006)


def test_who_has_waited_for_a_spare_does_not_wait_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare()
    stage.channel._changes = -1  # something has ended
    has_waited = [False, False, True]
    monkeypatch.setattr(stage.channel, "_wait_for_spares", lambda _: has_waited.pop())
    assert stage.channel.renew()
    assert len(has_waited) == 2
    stage.channel._changes = -1
    assert stage.channel.renew()
    assert has_waited == []


def test_one_that_breaks_while_a_quorum_is_heard_from_is_replaced(stage: Stage) -> None:
    stage.clock.leap(200)  # the time of the caller is over
    stage.ask(needed=0)
    stage.peers[0].says(b":1\r\n")
    connection_to(stage, 0).receive(stage.clock.now())
    hang_up(stage, 2)
    stage.channel._hear_from_a_quorum()
    assert stage.channel.everyone() == [0, 1, 2]
    assert attempts(stage) == [1, 1, 2]


def test_who_is_heard_from_waits_for_no_node_again(stage: Stage) -> None:
    """A node that can't be reached was waited for before that."""
    stage.ask(needed=0)
    stage.channel._connections.drop(2)
    gate = threading.Event()
    connect = stage.peers[2].connects

    def hang() -> NodeConnection:
        gate.wait(60)
        return connect()

    stage.peers[2].connects = hang
    for number in (0, 1):
        stage.peers[number].says(b":1\r\n")
    stage.channel._hear_from_a_quorum()
    assert attempts(stage) == [1, 1, 1]
    gate.set()


def test_who_arrives_while_a_quorum_is_heard_from_is_adopted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the one that makes the quorum, beside one that is silent."""
    stage.ask(needed=0)
    connections = stage.channel._connections
    connections.drop(2)
    connections._start_due(stage.clock.now(), is_short=True)

    def read(seconds: float, _: None) -> float:
        eventually(lambda: not connections._arrivals.empty())
        return stage.clock.now() + seconds

    monkeypatch.setattr(stage.channel, "_read", read)
    stage.channel._hear_from_a_quorum()
    assert stage.channel.everyone() == [0, 1, 2]


def test_connections_that_broke_after_the_round_are_renewed(stage: Stage) -> None:
    stage.ask(needed=0)
    hang_up(stage, 0, 1, 2)
    assert stage.channel.renew()
    assert attempts(stage) == [2, 2, 2]


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_connection_that_a_round_has_missed_is_asked_in_the_next(
    stage: Stage, is_under_way: bool
) -> None:
    """One node restarted while this channel was idle, another hangs: two are well."""
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    hang_up(stage, 2)
    gate = threading.Event()
    connect = stage.peers[2].connects
    stage.peers[2].connects = lambda: (gate.wait(60), connect())[1]
    stage.channel.prepare()  # its end is noticed, and after a pause it is connected to
    if is_under_way:
        stage.clock.leap(4)
        stage.channel.prepare()
    stage.peers[0].says(b":1\r\n")
    stage.channel._node_timeout = 0.0
    assert [type(reply) for reply in stage.ask()] == [int, Failed, Failed]
    stage.channel._node_timeout = 30.0
    stage.clock.leap(1)
    gate.set()
    assert stage.channel.renew()
    stage.peers[0].says(b":2\r\n")
    stage.peers[2].says(b":2\r\n")
    assert stage.ask(needed=2) == [2, None, 2]


def test_without_connections_to_a_quorum_no_reply_is_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare()
    for peer in stage.peers[:2]:
        peer.connects = peer.refuse
    hang_up(stage, 0, 1)
    assert [type(reply) for reply in stage.ask(needed=0)].count(Failed) == 2
    monkeypatch.setattr(stage.channel, "_read", lambda *_: pytest.fail("it waited"))
    assert not stage.channel.renew()


def test_a_slow_node_is_no_reason_for_a_new_connection(stage: Stage) -> None:
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel.prepare()
    stage.channel._node_timeout = 0.0
    stage.ask()
    assert not stage.channel.renew()
    assert [peer.attempts for peer in stage.peers] == [1, 1, 1]


def test_a_first_round_after_idling_has_a_part_of_the_time(stage: Stage) -> None:
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    stage.channel._node_timeout = 0.05
    assert stage.channel.first_timeout(8.0) == 8.0
    stage.clock.leap(6)
    assert stage.channel.first_timeout(8.0) == 2.0
    assert stage.channel.first_timeout(0.1) == 0.05
    assert stage.channel.first_timeout(600.0) == 5.0, "then the connection is given up"
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    assert stage.channel.first_timeout(8.0) == 8.0
    stage.ask(needed=0)
    stage.clock.leap(6)
    assert stage.channel.first_timeout(8.0) == 8.0, "they are not idle"


# ---- spares for connections that do not answer


@pytest.fixture
def silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """All have answered once; none is given up, however much time passes."""
    monkeypatch.setattr(connection_set, "GIVE_UP_S", math.inf)
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    return stage


def ask_in_vain(stage: Stage, *answering: int) -> None:
    """Ask all three, of which only these answer within the node timeout."""
    for number in answering:
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask(timeout=0.0)
    assert [number for number in range(3) if replies[number] == 1] == [*answering]
    stage.clock.leap(30)


def attempts(stage: Stage) -> list[int]:
    return [peer.attempts for peer in stage.peers]


def has_no_spare_under_way(stage: Stage) -> bool:
    return all(peer.spares.began_at == -math.inf for peer in stage.peers)


def test_connections_that_do_not_answer_are_replaced(silent: Stage) -> None:
    old = [peer.end for peer in silent.peers]
    for number in (2, 3, 4):  # the new ones are forgotten, too
        ask_in_vain(silent)
        assert silent.channel.renew()
        eventually(lambda: has_no_spare_under_way(silent))
        silent.channel._look(silent.clock.now())  # for the third, if it came later
        assert attempts(silent) == [number] * 3
        say_to_all(silent, b":1\r\n")
        assert silent.ask() == [1, 1, 1]
    for end in old:
        assert end.recv(1 << 16).count(b"EVALSHA") == 2, "all that was written has arrived"
    assert silent.seen == [], "no node is called down"


def test_late_replies_end_the_wait_for_spares(silent: Stage) -> None:
    gate = threading.Event()
    for peer in silent.peers:

        def hang(peer: Peer = peer, connect: Callable[[], NodeConnection] = peer.connects) -> Any:
            peer.says(b":1\r\n")
            gate.wait(60)
            return connect()

        peer.connects = hang
    ask_in_vain(silent)
    assert silent.channel.renew(), "the round is worth repeating"
    assert silent.channel.dropped() == 0
    gate.set()


def test_a_quorum_that_answers_needs_no_spare(silent: Stage) -> None:
    ask_in_vain(silent, 0, 1)
    assert not silent.channel.renew()
    assert attempts(silent) == [1, 1, 1]


@pytest.mark.parametrize(("needs_votes", "made"), [(True, 2), (False, 1)])
def test_a_guarded_node_is_none_of_those_that_answer(
    silent: Stage, needs_votes: bool, made: int
) -> None:
    silent.channel.prepare(needs_votes=needs_votes)
    connection_to(silent, 0).votes_from = silent.clock.now() + 600.0
    ask_in_vain(silent, 0, 1)
    silent.channel.renew()
    assert attempts(silent) == [1, 1, made]


def test_what_was_asked_a_moment_ago_is_not_silent(silent: Stage) -> None:
    silent.ask(timeout=0.0)
    assert not silent.channel.renew()
    assert attempts(silent) == [1, 1, 1]


def test_a_spare_that_fails_does_not_call_the_node_down(silent: Stage) -> None:
    def fail() -> NodeConnection:
        raise ConnectionError

    for peer in silent.peers:
        peer.connects = fail
    ask_in_vain(silent)
    assert not silent.channel.renew()
    assert [peer.error for peer in silent.peers] == [None] * 3
    assert silent.channel.everyone() == [0, 1, 2], "the old connections stay"
    ask_in_vain(silent)
    assert not silent.channel.renew()
    assert attempts(silent) == [3, 3, 3], "the pause of five seconds is over"


def test_servers_that_hang_get_a_spare_now_and_then(silent: Stage) -> None:
    gate = threading.Event()
    for peer in silent.peers:

        def hang(connect: Callable[[], NodeConnection] = peer.connects) -> NodeConnection:
            gate.wait(60)
            return connect()

        peer.connects = hang
    silent.channel._connections._node_timeout = 0.5
    ask_in_vain(silent)
    assert not silent.channel.renew()
    assert attempts(silent) == [2, 2, 2]
    before = silent.channel.dropped()
    silent.ask(timeout=0.0)
    silent.clock.leap(1)
    assert not silent.channel.renew(), "these spares are not waited for again"
    other = silent.new_channel()
    assert attempts(silent) == [2, 2, 2]
    gate.set()
    eventually(lambda: has_no_spare_under_way(silent))
    assert silent.channel.dropped() == before
    silent.channel._look(silent.clock.now())
    assert silent.channel.dropped() == before + 3, "each spare takes the place of the old one"
    other.close()


def test_a_clock_that_raises_does_not_stop_reconnecting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, raised = stage.clock.now, threading.Event()

    def raise_where_it_connects() -> float:
        if threading.current_thread().name.startswith("redlock-connect") and not raised.is_set():
            raised.set()
            raise ValueError("the clock")
        return now()

    monkeypatch.setattr(stage.clock, "now", raise_where_it_connects)
    hang_up(stage, 0)
    stage.channel.prepare()
    for _ in range(3):
        stage.clock.leap(60)
        stage.channel.prepare()
    assert raised.wait(60)

    def is_connected_again() -> bool:
        stage.clock.leap(60)
        stage.channel.prepare()
        return stage.channel.everyone() == [0, 1, 2]

    eventually(is_connected_again)


# ---- making connections


@pytest.mark.parametrize(
    ("now", "used_at", "is_looked_after"),
    [(0.099, 0.0, False), (0.1, 0.0, True), (0.99, 0.99, False), (1.0, 1.0, True)],
)
def test_a_channel_is_looked_after_if_it_was_not_used_just_now(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    now: float,
    used_at: float,
    is_looked_after: bool,
) -> None:
    looks: list[float] = []
    channel = stage.channel

    def wait(seconds: float) -> Sequence[int]:
        looks.append(seconds)
        return ()

    monkeypatch.setattr(channel_module, "close_lingering", lambda: looks.append(now))
    monkeypatch.setattr(channel._connections.poller, "wait", wait)
    channel._clock, channel._used_at, channel._looked_at = FakeClock(now), used_at, 0.0
    channel.prepare()
    channel._used_at = now
    channel.prepare()
    assert looks == [now, 0.0] * is_looked_after
    channel._connections.drop(0)
    channel.prepare()
    assert looks == [now, 0.0] * (is_looked_after + 1), "it lacks a connection"


@pytest.mark.parametrize(
    ("given", "patience", "later"), [(None, 180.0, 80.0), (0.0, 0.0, 30.0), (1e3, 180.0, 80.0)]
)
def test_connections_are_waited_for_in_the_time_from_prepare_on(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    given: float | None,
    patience: float,
    later: float,
) -> None:
    calls: list[tuple[float, float, bool, bool]] = []

    def note(now: float, patience: float, *, for_all: bool, needs_votes: bool) -> None:
        calls.append((now, patience, for_all, needs_votes))

    monkeypatch.setattr(stage.channel._connections, "reconnect", note)
    stage.channel._clock = clock = FakeClock(1000.0)
    stage.channel._connections.drop(0)
    stage.channel.prepare(given)
    clock.move(100.0)
    assert not stage.channel.renew()
    assert calls == [(1000.0, patience, False, True), (1100.0, later, True, True)]


def test_a_caller_waits_for_connections_within_its_time_only(stage: Stage) -> None:
    never = threading.Event()
    channel = Channel(stage.peers, stage.clock, node_timeout=30.0, connect_timeout=1e6)
    for peer in stage.peers:
        peer.connects = lambda: cast(Any, never.wait())
    channel.prepare(patience=0.0)
    assert channel.everyone() == []
    never.set()


def test_without_a_thread_to_connect_the_other_connections_do(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(run: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(dispatch, "start_beside", fail)
    stage.peers[0].end.close()
    for _ in range(2):
        stage.clock.leap(60.0)
        stage.channel.prepare()
    for number in (1, 2):
        stage.peers[number].says(b":%d\r\n" % number)
    assert stage.ask() == [
        Failed("no thread can be started to connect: can't start new thread"), 1, 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("is_new", "breaks"),
    [pytest.param(False, False, marks=pytest.mark.long), (False, True), (True, False)],
)
def test_only_the_interrupt_comes_out_wherever_it_strikes(is_new: bool, breaks: bool) -> None:
    stages: list[Stage] = []

    def ask(_: int) -> None:
        with stages[-1].pool.channel() as channel:
            say_to_all(stages[-1], b":1\r\n")
            if breaks:
                stages[-1].peers[0].end.close()
            channel.ask([COMMAND], itemgetter(0), lambda replies: None not in replies, (0, 1, 2))

    def stage_anew() -> None:
        stages.append(stage := Stage())
        if not is_new:
            stage.pool.put(stage.channel)
        stage.clock.leap(60.0)  # it is to be looked at

    stage_anew()
    count = 0
    for _, raised, where in strikes(ask):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        stage_anew()
        count += 1
    assert count > 100
    for stage in stages:
        stage.channel = stage.new_channel()  # for nobody waits for what is struck
        stage.close()


# ---- the pool


def test_a_channel_that_was_not_used_for_long_is_closed(stage: Stage) -> None:
    with stage.pool.channel() as first, stage.pool.channel() as second:
        pass
    stage.clock.leap(20)
    for _ in range(3):
        with stage.pool.channel(first):
            stage.clock.leap(20)
            first.prepare()
    stage.pool.close_unused(60.0)
    assert stage.pool._idle == [first]
    assert second.everyone() == []


def test_an_unconnected_channel_has_failed_on_every_node(stage: Stage) -> None:
    channel = stage.new_channel()
    channel.stay_unconnected("all connections are in use")
    for make_connections in (channel.prepare, channel.connect_all, channel.renew):
        assert not make_connections()
    attempts = [peer.attempts for peer in stage.peers]
    assert attempts == [1, 1, 1], "those of the other channel"
    replies = channel.ask([COMMAND], itemgetter(0), lambda replies: None not in replies, (0, 1, 2))
    assert replies == [Failed("all connections are in use")] * 3
    channel.close()


# ---- closing


def test_a_slow_server_reads_all_before_its_connection_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with theirs:
        connection = NodeConnection(
            Connection(ours), votes_from=0.0, on_end=lambda why, *, blames_node: None
        )
        connection.send(b"GRANT RELEASE", 2, 0.0)
        theirs.sendall(b":1\r\n")  # unread: closed now, the socket would be reset
        connection.disconnect()
        for _ in range(2):
            theirs.sendall(b":1\r\n")
        assert theirs.recv(100) == b"GRANT RELEASE"
        assert theirs.recv(100) == b"", "it is told of the end"

    def is_closed() -> bool:
        close_lingering()
        return ours.fileno() == -1

    eventually(is_closed)


def test_a_connection_that_owes_nothing_is_closed_at_once() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        NodeConnection(Connection(ours), 0.0, lambda why, *, blames_node: None).disconnect()
        assert ours.fileno() == -1


def test_connections_that_linger_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lingering, "_lingering", deque())  # without those of other tests
    with ExitStack() as stack:
        sockets = []
        for _ in range(40):
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            ended = NodeConnection(Connection(ours), 0.0, lambda why, *, blames_node: None)
            ended.send(b"RELEASE", 1, 0.0)
            ended.disconnect()
            sockets.append(ours)
        still_open = [ours.fileno() != -1 for ours in sockets]
        assert sum(still_open) == 32
    close_lingering()
    assert [ours.fileno() for ours in sockets] == [-1] * 40
