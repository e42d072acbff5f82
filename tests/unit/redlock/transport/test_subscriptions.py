"""What is heard of releases, on nodes that confirm, refuse, fall silent or send nonsense."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.connection import pack
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from tests.support.eventually import PATIENCE, eventually
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import FakeNode, push
from tests.support.fakes.keeper_stage import in_this_thread

CHECK = 5.0
REFUSED = 60.0
BACKOFF_MAX = 5.0
BATCH = 500
NO_RIGHT = b"-NOPERM this user has no permissions to access one of the channels\r\n"


def confirm(command: list[bytes]) -> list[bytes]:
    """Answer as a server does: once for each channel."""
    return [push(command[0].lower(), channel, 1) for channel in command[1:]]


class Stage:
    """Subscriptions on nodes that the test plays. A connection is made by the time it is needed."""

    def __init__(self, servers: list[FakeNode]) -> None:
        self.servers = servers
        self.clock = FakeClock()
        self.heard: list[Message] = []
        self.nodes = [Node(one.url, self.clock, PATIENCE, 0.0, lambda _: None) for one in servers]
        self.subscriptions = Subscriptions(self.nodes, self.clock, PATIENCE, PATIENCE)

    def follow(self, *channels: str) -> None:
        self.subscriptions.follow(set(channels))

    def hear_until(self, is_true: Callable[[], object], claim: str = "") -> None:
        """Listen until `is_true()`."""

        def hears() -> object:
            self.heard += self.subscriptions.hear(0.01)
            return is_true()

        eventually(hears, claim)

    def confirmed(self, *channels: str) -> None:
        """Follow these channels until a quorum has confirmed each."""
        self.follow(*channels)
        self.hear_until(lambda: all(map(self.subscriptions.reaches_quorum, channels)), "confirmed")

    def connected(self) -> list[int]:
        return self.subscriptions._connections.connected()

    def is_confirmed_by(self, indexes: list[int]) -> bool:
        listening = enumerate(self.subscriptions._listening)
        return [index for index, one in listening if one and one.confirmed] == indexes

    def has_just_been_heard(self) -> bool:
        listening = self.subscriptions._listening[0]
        assert listening, "the connection was dropped"
        return listening.heard_at == self.clock.now()

    def fd(self, index: int = 0) -> int:
        connection = self.subscriptions._connections.by_node[index]
        assert connection
        return connection.fd

    def asked(self, index: int = 0, command: str = "SUBSCRIBE") -> list[set[str]]:
        """Return the channels of each such command that a node was sent so far."""
        self.settle(index)
        return [
            {channel.decode() for channel in channels}
            for name, *channels in self.servers[index].heard
            if name.decode() == command
        ]

    def settle(self, index: int = 0) -> None:
        """Return when the node has read all that was sent to it."""
        connection = self.subscriptions._connections.by_node[index]
        if connection is None:
            return
        assert connection.sent == connection.received, "replies are messages: none is owed"
        server, before = self.servers[index], self.servers[index].heard_names().count("SETTLED")
        connection.send(b"*1\r\n$7\r\nSETTLED\r\n", 0, self.clock.now())
        eventually(lambda: server.heard_names().count("SETTLED") > before)


@pytest.fixture
def new_stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Stage]]:
    """Make a stage with so many nodes."""
    in_this_thread(monkeypatch, dispatch, "start_beside", lambda run, _name: run())
    with ExitStack() as stack:

        def new_stage(count: int) -> Stage:
            servers = [stack.enter_context(FakeNode()) for _ in range(count)]
            for server in servers:
                # Nothing is answered to what only ends a wait of the test.
                server.answers |= {"SUBSCRIBE": confirm, "UNSUBSCRIBE": confirm, "SETTLED": b""}
            stage = Stage(servers)
            stack.callback(stage.subscriptions.close)
            return stage

        yield new_stage


@pytest.fixture
def one(new_stage: Callable[[int], Stage]) -> Stage:
    return new_stage(1)


@pytest.fixture
def three(new_stage: Callable[[int], Stage]) -> Stage:
    return new_stage(3)


# ---- what is followed


def test_only_what_changed_is_subscribed_and_unsubscribed(one: Stage) -> None:
    one.confirmed("a", "b")
    one.follow("a", "b")
    one.confirmed("b", "c")
    assert one.asked() == [{"a", "b"}, {"c"}]
    assert one.asked(command="UNSUBSCRIBE") == [{"a"}]


def test_channels_are_subscribed_and_unsubscribed_in_order(one: Stage) -> None:
    # A schedule of the simulation is replayed exactly, whatever strings hash to.
    channels = [f"c{number:02}" for number in range(20)]
    one.confirmed(*channels)
    one.follow()
    one.settle()
    asked = [words[1:] for words in one.servers[0].heard if words[0].endswith(b"SUBSCRIBE")]
    assert asked == [[channel.encode() for channel in channels]] * 2


def test_a_channel_that_is_not_followed_reaches_no_quorum(one: Stage) -> None:
    one.confirmed("a", "b")
    one.follow("b")
    assert not one.subscriptions.reaches_quorum("a")
    assert one.subscriptions.reaches_quorum("b")


def test_a_late_confirmation_of_an_old_channel_does_not_count(one: Stage) -> None:
    one.servers[0].answers["SUBSCRIBE"] = b""
    one.follow("a")
    one.follow("b")
    one.servers[0].answers["SUBSCRIBE"] = confirm
    one.settle()
    one.servers[0].say(push("subscribe", "a", 1) + push("subscribe", "b", 1))
    one.hear_until(lambda: one.subscriptions.reaches_quorum("b"))
    assert not one.subscriptions.reaches_quorum("a")
    one.follow("a", "b")
    assert not one.subscriptions.reaches_quorum("a"), "it was confirmed before it was unsubscribed"


def test_many_channels_are_subscribed_in_batches(one: Stage) -> None:
    channels = {f"c{number}" for number in range(2 * BATCH + 1)}
    one.confirmed(*channels)
    batches = one.asked()
    assert [len(batch) for batch in batches] == [BATCH, BATCH, 1]
    assert set().union(*batches) == channels


# ---- what reaches a quorum


def test_a_channel_reaches_a_quorum_when_a_majority_confirms(three: Stage) -> None:
    for server in three.servers:
        server.answers["SUBSCRIBE"] = b""
    three.follow("a")
    for server, confirming in zip(three.servers, ([0], [0, 1]), strict=False):
        assert not three.subscriptions.reaches_quorum("a")
        server.say(push("subscribe", "a", 1))
        three.hear_until(partial(three.is_confirmed_by, confirming))
    assert three.subscriptions.reaches_quorum("a")


def test_a_lost_connection_confirms_nothing(three: Stage) -> None:
    three.servers[0].answers["SUBSCRIBE"] = b""
    three.confirmed("a")
    three.servers[1].hang_up()
    three.hear_until(lambda: three.connected() == [0, 2])
    assert not three.subscriptions.reaches_quorum("a")
    assert three.subscriptions.lost == 1


# ---- messages


def test_a_message_has_its_node_channel_and_text(three: Stage) -> None:
    three.confirmed("a")
    three.servers[2].say(push("message", "a", b"\xff1") + push("message", "a", "2"))
    three.hear_until(lambda: len(three.heard) == 2)
    assert three.heard == [Message(2, "a", b"\xff1"), Message(2, "a", b"2")]


@pytest.mark.parametrize(
    "nonsense",
    [
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        push("message", "a"),
        push("message", "a", 1),
        push("message", 1, "text"),
        push("message", "a", "text", "more"),
        push("pmessage", "*", "a", "text"),
        push("subscribe", "a", "1"),
        push("subscribe", "never asked for", 1),
        push("subscribe", b"\xff", 1),
        push("unsubscribe", "a", 0),
    ],
)
def test_a_malformed_message_is_ignored(one: Stage, nonsense: bytes) -> None:
    one.confirmed("a")
    one.servers[0].say(nonsense + push("message", "a", "text"))
    one.hear_until(lambda: one.heard)
    assert one.heard == [Message(0, "a", b"text")]
    assert one.subscriptions.reaches_quorum("a")
    assert not one.subscriptions.reaches_quorum("never asked for")


def test_a_channel_name_that_is_no_text_does_no_harm(one: Stage) -> None:
    one.confirmed("a")
    one.servers[0].say(push("message", b"\xff", "text"))
    one.hear_until(lambda: one.heard)
    assert one.heard == [Message(0, "\N{REPLACEMENT CHARACTER}", b"text")]


def test_a_wakeup_ends_the_next_wait_and_no_other(one: Stage) -> None:
    one.subscriptions.wake()
    assert one.subscriptions.hear(PATIENCE) == []
    one.confirmed("a")
    one.servers[0].say(push("message", "a", "text"))
    assert one.subscriptions.hear(PATIENCE) == [Message(0, "a", b"text")]


# ---- refusals


def test_a_refusing_node_is_asked_again_after_a_minute(
    one: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_redlock")
    one.servers[0].answers["SUBSCRIBE"] = NO_RIGHT
    one.follow("a")
    one.hear_until(lambda: caplog.messages)
    [line] = caplog.messages
    assert re.fullmatch(r"wakeups refused, polling node=127\S+ error=NOPERM .*", line)
    one.servers[0].answers["SUBSCRIBE"] = confirm
    one.clock.move(REFUSED - 1)
    one.follow("a", "b")
    assert one.asked() == [{"a"}]
    one.clock.move(1)
    one.confirmed("a", "b")
    assert one.asked()[1] == {"a", "b"}, "whatever it refused, and what was added meanwhile"


def test_a_refusal_revokes_what_was_confirmed(one: Stage) -> None:
    one.confirmed("a")
    one.servers[0].say(NO_RIGHT)
    one.hear_until(lambda: not one.subscriptions.reaches_quorum("a"))
    assert one.connected() == [0]


def test_a_node_asked_again_first_ends_what_it_did_not_refuse(one: Stage) -> None:
    one.confirmed("a")
    one.servers[0].say(NO_RIGHT)
    one.hear_until(lambda: not one.subscriptions.reaches_quorum("a"))
    one.clock.move(REFUSED)
    one.confirmed("b")
    one.confirmed("b", "c")
    one.settle()
    commands = [command for command in one.servers[0].heard if command[0].endswith(b"SUBSCRIBE")]
    assert commands[:3] == [[b"SUBSCRIBE", b"a"], [b"UNSUBSCRIBE"], [b"SUBSCRIBE", b"b"]]
    assert commands.count([b"UNSUBSCRIBE"]) == 1


def test_one_refusing_node_of_three_leaves_a_quorum(three: Stage) -> None:
    three.servers[0].answers["SUBSCRIBE"] = NO_RIGHT
    three.confirmed("a")
    assert three.connected() == [0, 1, 2]


# ---- connections


@pytest.mark.parametrize("lost", [[1], [1, 2]])
def test_a_lost_connection_is_made_again_after_a_back_off(three: Stage, lost: list[int]) -> None:
    three.confirmed("a")
    for index in lost:
        three.servers[index].hang_up()
    three.hear_until(lambda: three.connected() == sorted({0, 1, 2}.difference(lost)))
    three.follow("a")
    assert three.servers[1].heard_names().count("INFO") == 2, "no attempt before the back-off"
    three.clock.time = max(three.nodes[index].retry_at for index in lost)
    three.follow("a")
    three.confirmed("a", "b")
    assert three.connected() == [0, 1, 2]
    assert set().union(*three.asked(1)[1:]) == {"a", "b"}, "all, on the new connection"


def test_a_connection_that_was_replaced_is_subscribed_again(one: Stage) -> None:
    one.confirmed("a")
    one.subscriptions._connections.drop(0)
    one.follow("a")
    assert not one.subscriptions.reaches_quorum("a")
    assert one.asked() == [{"a"}, {"a"}]


def test_what_a_node_did_not_read_at_once_is_sent_later(one: Stage) -> None:
    one.confirmed("a")
    connection = one.subscriptions._connections.by_node[0]
    assert connection
    connection._outbox += pack(("SUBSCRIBE", "b"))
    connection.is_blocked = True
    one.follow("a")
    one.hear_until(lambda: [b"SUBSCRIBE", b"b"] in one.servers[0].heard)
    assert not connection.is_blocked


def test_no_vote_is_waited_for_to_listen(three: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three nodes, one waits for its restart guard, and one is not connected."""
    three.confirmed("a")
    connections = three.subscriptions._connections
    [_, guarded, _] = connections.by_node
    assert guarded
    guarded.votes_from = math.inf
    connections.drop(2)
    three.clock.move(10.0)
    monkeypatch.setattr(dispatch, "start_beside", lambda run, _name: None)  # it hangs
    began = three.clock.now()
    monkeypatch.setattr(connections, "adopt", lambda patience=0.0: three.clock.move(patience))
    three.follow("a")
    assert three.clock.now() == began


def test_a_node_that_sends_no_redis_replies_is_dropped(three: Stage) -> None:
    three.confirmed("a")
    three.servers[1].say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    three.hear_until(lambda: three.connected() == [0, 2])
    assert "no Redis reply" in str(three.nodes[1].error)
    assert three.subscriptions.reaches_quorum("a")


def test_fewer_nodes_than_a_quorum_are_followed_as_well(three: Stage) -> None:
    for server in three.servers[:2]:
        server.info["role"] = "slave"
    three.follow("a")
    three.settle(2)
    assert three.asked(2) == [{"a"}]
    three.servers[2].say(push("message", "a", "text"))
    three.hear_until(lambda: three.heard)
    assert not three.subscriptions.reaches_quorum("a")


# ---- a connection that died in silence


def test_a_silent_connection_is_checked_once_in_a_while(one: Stage) -> None:
    one.confirmed("a")
    one.clock.move(CHECK - 0.1)
    one.follow("a")
    assert one.asked() == [{"a"}]
    one.clock.move(0.1)
    one.follow("a")
    one.follow("a")
    assert one.asked() == [{"a"}, {"a"}]


def test_a_connection_that_answers_no_check_is_replaced(one: Stage) -> None:
    one.confirmed("a")
    one.servers[0].answers["SUBSCRIBE"] = b""
    one.clock.move(CHECK)
    one.follow("a")
    one.clock.move(CHECK - 0.1)
    one.follow("a")
    assert one.connected() == [0]
    one.clock.move(0.1)
    one.follow("a")
    assert one.connected() == []
    assert not one.subscriptions.reaches_quorum("a")
    one.servers[0].answers["SUBSCRIBE"] = confirm
    one.clock.move(BACKOFF_MAX)
    one.confirmed("a")


@pytest.mark.parametrize("sign", [push("subscribe", "a", 1), push("message", "a", "text")])
def test_a_connection_with_any_sign_of_life_is_kept(one: Stage, sign: bytes) -> None:
    one.confirmed("a")
    one.servers[0].answers["SUBSCRIBE"] = b""
    fd = one.fd()
    for _ in range(5):
        one.clock.move(CHECK)
        one.follow("a")
        one.servers[0].say(sign)
        one.hear_until(one.has_just_been_heard)
    one.follow("a")
    assert one.fd() == fd


def test_a_connection_without_channels_is_not_checked(one: Stage) -> None:
    one.confirmed("a")
    one.follow()
    for _ in range(5):
        one.clock.move(CHECK)
        one.follow()
    assert one.connected() == [0]
    assert one.asked() == [{"a"}]


# ---- the end


def test_close_ends_every_connection(three: Stage) -> None:
    three.confirmed("a")
    three.hear_until(lambda: three.is_confirmed_by([0, 1, 2]), "all of them")
    copies = [socket.socket(fileno=os.dup(three.fd(index))) for index in range(3)]
    three.subscriptions.close()
    for copy in copies:
        with copy:
            copy.settimeout(PATIENCE)
            assert copy.recv(1) == b""


def test_a_child_closes_its_copy_of_the_wakeup(one: Stage) -> None:
    one.confirmed("a")
    one.subscriptions.disown()
    assert one.subscriptions._wakeup._fds == ()
