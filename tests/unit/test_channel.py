"""A channel over socket pairs, whose other ends say exactly what a test wants."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import hiredis
import pytest

from celery_redlock.redlock.channel import Channel
from celery_redlock.redlock.events import Event
from celery_redlock.redlock.exchange import Replies
from celery_redlock.redlock.link import Link
from celery_redlock.redlock.node import Node
from celery_redlock.redlock.pool import Pool
from celery_redlock.redlock.quorum import Failed
from tests.support.eventually import eventually
from tests.support.fake_clock import LeapingClock

NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
LOADED = b"$1\r\nx\r\n" * 4
COMMAND = ("EVALSHA", "sha", 0)


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()


class Peer(Node):
    """A node that is played by the test.

    Attributes:
        end: The server's end of the latest connection.
        connects: What a connection attempt does.
    """

    def __init__(self, name: str, clock: LeapingClock, seen: Callable[[Event], None]) -> None:
        super().__init__(f"redis://{name}:1", clock, 60.0, 0.0, seen)
        self.connects: Callable[[], Link] = self.link
        self.attempts = 0
        self.ends: list[socket.socket] = []

    def connect(self) -> Link:
        self.attempts += 1
        return self.connects()

    def link(self) -> Link:
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        return Link(Connection(ours), votes_from=0.0, on_end=self._ended)

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
        self.pool = Pool(self.new_channel)
        self.channel = self.new_channel()
        self.channel.prepare()

    def new_channel(self) -> Channel:
        return Channel(self.peers, self.clock, node_timeout=30.0, connect_timeout=60.0)

    def ask(self, needed: int = 3, among: Sequence[int] = (0, 1, 2)) -> Replies[object]:
        """Return all replies as soon as so many have come in."""

        def is_decided(replies: Replies[object]) -> bool:
            return sum(reply is not None for reply in replies) >= needed

        return self.channel.ask(COMMAND, lambda raw: raw, is_decided, among)

    def ask_batch(self, count: int) -> Replies[list[object]]:
        def is_decided(replies: Replies[list[object]]) -> bool:
            return None not in replies

        commands = [("EVALSHA", "sha", 0, number) for number in range(count)]
        return self.channel.ask_batch(commands, lambda raws: raws, is_decided, (0, 1, 2))

    def close(self) -> None:
        # What is made in the background after this would be closed by nobody.
        channels = [self.channel, *self.pool._idle]
        eventually(lambda: all(len(one._arrivals) == len(one._connecting) for one in channels))
        self.channel.close()
        self.pool.close()
        for peer in self.peers:
            for end in peer.ends:
                end.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


def link_of(stage: Stage, index: int) -> Link:
    link = stage.channel._links[index]
    assert link
    return link


def say_to_all(stage: Stage, *replies: bytes) -> None:
    for peer in stage.peers:
        peer.says(*replies)


# ---- rounds


def test_everybody_is_asked_the_same_and_each_reply_is_its_node_s(stage: Stage) -> None:
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
    assert link_of(stage, 2).sent == link_of(stage, 2).received == 11


def test_who_is_late_has_failed_and_its_reply_is_read_off_later(stage: Stage) -> None:
    stage.channel._node_timeout = 0.01
    stage.peers[0].says(b":0\r\n")
    stage.peers[1].says(b":1\r\n")
    assert stage.ask() == [0, 1, Failed("timed out after 10 ms")]
    stage.channel._node_timeout = 30.0
    stage.peers[2].says(b":99\r\n")
    say_to_all(stage, b":5\r\n")
    assert stage.ask() == [5, 5, 5]


def test_replies_that_are_there_count_though_this_thread_came_too_late(stage: Stage) -> None:
    class Nap(LeapingClock):
        def now(self) -> float:
            self.leap(1000)
            return super().now()

    stage.channel._clock = Nap()
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]


def test_replies_may_come_in_pieces(stage: Stage) -> None:
    say_to_all(stage, b":1\r\n*2\r\n$3\r\nab")
    assert stage.ask() == [1, 1, 1]
    say_to_all(stage, b"c\r\n:")
    say_to_all(stage, b"12\r\n")
    assert stage.ask() == [[b"abc", 12]] * 3


def test_a_batch_is_one_write_and_the_list_of_its_replies(stage: Stage) -> None:
    for number, peer in enumerate(stage.peers):
        peer.says(b":%d\r\n:7\r\n-ERR no\r\n" % number)
    replies = stage.ask_batch(3)
    for number, reply in enumerate(replies):
        assert isinstance(reply, list)
        assert reply[:2] == [number, 7]
        assert isinstance(reply[2], hiredis.ReplyError)
    assert [len(peer.heard()) for peer in stage.peers] == [3, 3, 3]


def test_what_the_socket_does_not_take_is_sent_when_it_does(stage: Stage) -> None:
    # Asked for more than a socket pair holds; the peers read only while they are waited for.
    for peer in stage.peers:
        peer.end.settimeout(60)
    link = link_of(stage, 0)
    payload = b"*1\r\n$4\r\nPING\r\n" * 100_000
    link.send(payload, 100_000, 0.0)
    assert link.is_blocked
    taken = 0
    while taken < len(payload):
        taken += len(stage.peers[0].end.recv(1 << 20))
        if link.is_blocked:
            link.flush()
    assert taken == len(payload)
    assert link_of(stage, 0)._outbox == b""


# ---- scripts that were forgotten


def test_a_forgotten_script_is_loaded_and_the_request_repeated_once(stage: Stage) -> None:
    say_to_all(stage, NOSCRIPT, LOADED, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    for peer in stage.peers:
        names = [command[0] for command in peer.heard()]
        assert names == [b"EVALSHA"] + [b"SCRIPT"] * 4 + [b"EVALSHA"]


def test_a_server_that_keeps_forgetting_has_failed(stage: Stage) -> None:
    say_to_all(stage, NOSCRIPT, LOADED, NOSCRIPT)
    assert stage.ask() == [Failed("it keeps forgetting its scripts")] * 3


@pytest.mark.parametrize("known", [0, 1, 2, 3])
def test_a_batch_that_lost_its_script_on_the_way_is_repeated_as_a_whole(
    stage: Stage, known: int
) -> None:
    say_to_all(
        stage, b":1\r\n" * known, NOSCRIPT * (4 - known), LOADED, b":5\r\n:6\r\n:7\r\n:8\r\n"
    )
    if known < 4:
        assert stage.ask_batch(4) == [[5, 6, 7, 8]] * 3
    for peer in stage.peers:
        names = [command[0] for command in peer.heard()]
        assert names == [b"EVALSHA"] * 4 + [b"SCRIPT"] * 4 + [b"EVALSHA"] * 4


def test_a_repeated_batch_that_the_socket_does_not_take_at_once_arrives(stage: Stage) -> None:
    # Node 0 has read nothing yet when it says that it has forgotten the script.
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n" * 3000)
    link = link_of(stage, 0)
    link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    read = bytearray()
    end = stage.peers[0].end
    end.setblocking(False)
    wait = stage.channel._poller.wait

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
    stage.channel._poller.wait = wait_and_serve  # type: ignore[method-assign]
    assert stage.ask_batch(3000)[0] == [5] * 3000


def test_a_forgotten_script_of_an_owed_reply_is_loaded_and_nothing_repeated(stage: Stage) -> None:
    for number in (0, 1):
        stage.peers[number].says(b":1\r\n")
    assert stage.ask(needed=2) == [1, 1, None]
    stage.peers[2].says(NOSCRIPT)
    say_to_all(stage, b":2\r\n")
    stage.peers[2].says(LOADED)
    assert stage.ask() == [2, 2, 2]
    names = [command[0] for command in stage.peers[2].heard()]
    assert names == [b"EVALSHA", b"EVALSHA"] + [b"SCRIPT"] * 4


def test_what_a_later_round_writes_to_its_end_is_not_waited_for_any_more(stage: Stage) -> None:
    def ask(count: int) -> None:
        commands = [("EVALSHA", "sha", 0, number) for number in range(count)]
        stage.channel.ask_batch(commands, lambda raws: raws, lambda _: True, (0,))

    link = link_of(stage, 0)
    link._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ask(3000)
    assert link_of(stage, 0).is_blocked
    while link_of(stage, 0).is_blocked:
        stage.peers[0].end.recv(1 << 20)
        ask(1)
    while select.select([stage.peers[0].end], [], [], 0.0)[0]:
        stage.peers[0].end.recv(1 << 20)
    # Else whoever reads until there is nothing more would read for ever.
    assert list(stage.channel._poller.wait(0.0)) == []


def test_who_has_not_taken_all_that_was_written_does_not_vote(stage: Stage) -> None:
    link_of(stage, 0)._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    commands = [("EVALSHA", "sha", 0, number) for number in range(3000)]
    stage.channel.ask_batch(commands, lambda raws: raws, lambda _: True, (0,))
    assert stage.channel.voters() == [1, 2]


# ---- connections that end


def test_who_became_a_replica_is_left_and_blamed(stage: Stage) -> None:
    error = "READONLY You can't write against a read only replica."
    stage.peers[0].says(f"-{error}\r\n".encode())
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask()
    assert str(replies[0]) == error
    assert replies[1:] == [1, 1]
    assert stage.channel.everyone() == [1, 2]
    assert stage.peers[0].error == "it became a replica"


def test_who_hangs_up_has_failed_and_the_others_count(stage: Stage) -> None:
    stage.peers[0].end.close()
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    replies = stage.ask()
    assert isinstance(replies[0], Failed)
    assert replies[1:] == [1, 1]
    assert stage.channel.everyone() == [1, 2]


def test_a_write_that_fails_ends_the_connection_for_good(stage: Stage) -> None:
    link = link_of(stage, 0)
    stage.peers[0].end.close()
    stage.peers[1].says(b":1\r\n")
    stage.peers[2].says(b":1\r\n")
    stage.ask()
    assert link.closed
    assert stage.channel._links[0] is None
    assert link.fd not in stage.channel._index


def test_a_silent_node_is_given_up_however_busy_the_channel_is(stage: Stage) -> None:
    for _ in range(120):
        stage.channel.prepare()
        for peer in stage.peers[:2]:
            peer.says(b":1\r\n")
        stage.ask(needed=2, among=stage.channel.everyone())
        stage.clock.leap(0.05)
    assert "it has not answered for 5 s" in {getattr(event, "error", None) for event in stage.seen}


def test_the_end_of_a_connection_is_seen_behind_the_replies_it_owed(stage: Stage) -> None:
    for number in (0, 1):
        stage.peers[number].says(b":1\r\n")
    stage.ask(needed=2)
    stage.peers[2].says(b":1\r\n")
    stage.peers[2].end.close()
    old = link_of(stage, 2)
    stage.clock.leap(1)
    stage.channel.prepare()
    assert old.closed
    assert stage.channel._links[2] is not old


def test_a_connection_that_broke_before_anybody_used_it_is_not_used(stage: Stage) -> None:
    def look_after() -> None:
        stage.clock.leap(1)
        stage.channel.prepare()

    stage.peers[0].end.close()
    look_after()
    look_after()
    eventually(lambda: stage.channel._arrivals, "it is made anew in the background")
    stage.peers[0].end.close()
    look_after()
    assert stage.channel.everyone() == [1, 2]
    look_after()
    eventually(lambda: stage.channel._arrivals)
    look_after()
    say_to_all(stage, b":1\r\n")
    assert stage.ask() == [1, 1, 1]
    assert stage.peers[0].attempts == 3


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


def test_what_is_pushed_is_no_reply(stage: Stage) -> None:
    push = b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n"
    say_to_all(stage, push, b":1\r\n", push)
    assert stage.ask() == [1, 1, 1]
    say_to_all(stage, push, push, b":2\r\n")
    assert stage.ask() == [2, 2, 2]


def test_a_descriptor_that_is_used_again_at_once_is_not_mistaken(stage: Stage) -> None:
    link = link_of(stage, 0)
    stage.peers[0].end.close()
    for number in (1, 2):
        stage.peers[number].says(b":1\r\n")
    stage.ask()
    # Somebody else's now, or of the next connection.
    taken = [os.dup(0)]
    while taken[-1] < link.fd:
        taken.append(os.dup(0))
    for number in (1, 2):
        stage.peers[number].says(b":2\r\n")
    assert stage.ask(needed=3)[1:] == [2, 2]
    assert link.fd not in stage.channel._index
    for descriptor in taken:
        os.close(descriptor)


# ---- making connections


def test_an_attempt_that_fails_unexpectedly_is_logged_and_not_repeated_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(count=3)

    def fail() -> Link:
        raise KeyError("run_id")

    stage.peers[0].connects = fail
    stage.peers[0].end.close()
    for _ in range(50):
        stage.clock.leap(0.15)
        stage.channel.prepare()
        while stage.channel._connecting:
            stage.channel._arrived.wait(60)
            stage.channel._arrived.clear()
            stage.channel._adopt()
    assert stage.peers[0].attempts < 15, "longer from time to time"
    assert "connecting failed unexpectedly node=node-0:1" in caplog.text
    assert "run_id" in (stage.peers[0].error or "")
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    stage.close()


# ---- the pool


def test_a_channel_is_lent_to_one_at_a_time_and_used_again(stage: Stage) -> None:
    with stage.pool.channel() as first, stage.pool.channel() as second:
        assert first is not second
    with stage.pool.channel() as third:
        assert third is first, "the one that was returned last"
    with stage.pool.channel(second) as fourth:
        assert fourth is second, "the one that was asked for"
    with stage.pool.channel(second) as fifth, stage.pool.channel(second) as sixth:
        assert fifth is second
        assert sixth is first, "or another one if that is in use"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_channel_that_was_interrupted_is_used_no_more(
    stage: Stage, error: type[BaseException]
) -> None:
    with pytest.raises(error), stage.pool.channel() as channel:
        raise error
    assert channel.everyone() == []
    with stage.pool.channel() as other:
        assert len(other.everyone()) == 3


def test_after_a_fork_the_parent_s_connections_are_closed_here_and_stand_there(
    stage: Stage,
) -> None:
    with stage.pool.channel() as channel:
        pass
    copies = [os.dup(link.fd) for link in channel._links if link]  # the parent's
    stage.pool.forget()
    for copy, peer in zip(copies, stage.peers, strict=True):
        os.write(copy, b"still here")
        assert peer.end.recv(100) == b"still here"
        os.close(copy)
        assert peer.end.recv(100) == b"", "nobody else has it"
    with stage.pool.channel() as other:
        assert other is not channel
