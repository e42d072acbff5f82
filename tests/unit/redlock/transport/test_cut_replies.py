"""Replies that the network cuts and merges anywhere mean what they mean in one piece."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.extension import Extension
from celery_redlock.redlock.inspection import Inspection
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    confirm_verdict,
    extend_verdict,
    grant_verdict,
)
from celery_redlock.redlock.protocol.replies import Granted
from celery_redlock.redlock.protocol.scripts import ALL
from celery_redlock.redlock.release import ReleaseRound
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.direct import DirectConnection, packed
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_node import bulk, push
from tests.support.fakes.lent_channel import access_over, acquisition_over

NODES = 3
TOKEN = b"$16\r\n1795000000000000\r\n"
LATER = b"$16\r\n1795000000000001\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
ERROR = b"-ERR :1\r\n"
# In what others wrote, there may be what looks like a reply.
BUSY = b"*5\r\n:0\r\n$8\r\n:1\r\n:1\r\n\r\n:29000\r\n:7\r\n:1795000000000000\r\n"
NOBODY = b"*5\r\n:0\r\n$0\r\n\r\n:0\r\n:0\r\n:0\r\n"
TIME = b"*2\r\n$10\r\n1795000000\r\n$1\r\n7\r\n"
_NAMES = {script.sha.encode(): script.name.upper() for script in ALL}
WHOLE = 1 << 20
TURNS = ((0, 1, 2), (1, 2, 0), (2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0))
"""Whose next piece comes, of those that have one: the first with one."""


class Kind(NamedTuple):
    """Round of one kind.

    Attributes:
        ask: Makes the round; returns its verdict.
        replies: Replies that a node may give, by name of the command.
    """

    ask: Callable[[Channel], object]
    replies: dict[str, tuple[bytes, ...]]


def _lease(number: int) -> Lease:
    return Lease(f"k{number}", "me", 7, 30_000, 1e9, FakeClock())


def _extend(channel: Channel) -> object:
    extension, leases = Extension(*access_over(channel)), [_lease(number) for number in range(3)]
    return list(map(extend_verdict, extension._ask(channel, leases, [30_000] * 3, 1.0)))


def _release_all(channel: Channel) -> object:
    requests = [ReleaseRequest(f"k{number}", "me", 0.0, 1e9, token=7) for number in range(3)]
    return ReleaseRound(*access_over(channel)).make_all(requests, 1.0)


def _release(channel: Channel) -> object:
    request = ReleaseRequest("k", "me", 0.0, 1e9, token=7)
    return confirm_verdict(ReleaseRound(*access_over(channel))._ask_one(channel, request), 0)


def _look(channel: Channel) -> object:
    try:
        return Inspection(*access_over(channel))._views_of("k", "look at")[0]
    except QuorumUnavailable:
        return Verdict.UNAVAILABLE


def _look_before(channel: Channel) -> object:
    return type(acquisition_over(channel)._look(channel, _ATTEMPT._replace(looks_first=True)))


def _grant(attempt: Attempt, channel: Channel) -> object:
    return grant_verdict(acquisition_over(channel)._grant(channel, attempt, 7))


def _confirm(channel: Channel) -> object:
    return acquisition_over(channel)._confirm(channel, _ATTEMPT, 7, 0, [Granted(6)] * NODES)


_ATTEMPT = Attempt("k", "me", 30_000)
_RESERVATION = _ATTEMPT._replace(is_reservation=True)
_RELEASED = (b":1\r\n", b":0\r\n", b"*2\r\n$8\r\nreleased\r\n:2\r\n", ERROR)
_LOOKS = {
    "GET": (b"$-1\r\n", b"$2\r\nme\r\n", b"$4\r\n:1\r\n\r\n"),
    "PTTL": (b":-2\r\n", b":29000\r\n"),
    "TIME": (TIME,),
}
KINDS = {
    "grant": Kind(
        partial(_grant, _ATTEMPT),
        {"GRANT": (TOKEN, LATER, BUSY, NOBODY, b"*2\r\n:2\r\n:9\r\n", ERROR)},
    ),
    "reservation": Kind(
        partial(_grant, _RESERVATION), {"SET": (b"+OK\r\n", b"$-1\r\n", ERROR), **_LOOKS}
    ),
    "look": Kind(_look, _LOOKS),
    "look before": Kind(_look_before, _LOOKS),
    "confirm": Kind(_confirm, {"CONFIRM": (b":1\r\n", b":0\r\n", ERROR)}),
    "extend": Kind(_extend, {"EXTEND": (b":1\r\n", b":0\r\n", b":2\r\n", b":3\r\n", ERROR)}),
    "release": Kind(_release, {"RELEASE": _RELEASED}),
    "release all": Kind(_release_all, {"RELEASE": _RELEASED}),
    "probe": Kind(
        lambda channel: Inspection(*access_over(channel))._probe(channel),
        {
            "GRANT": (TOKEN, ERROR),
            "PEXPIRE": (b":1\r\n", ERROR),
            "PTTL": (b":9\r\n", ERROR),
            "RELEASE": (b":1\r\n", ERROR),
        },
    ),
    "time": Kind(
        lambda channel: Inspection(*access_over(channel))._times(channel), {"TIME": (TIME, ERROR)}
    ),
}


class Connection:
    """What is left of redis-py's once it is connected."""

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def disconnect(self) -> None:
        self._sock.close()


class Server(Node):
    """Server at the end of a socket pair: it answers each command at once, and as it is told.

    Attributes:
        chosen: Numbers that choose the replies, in turn.
        kind: Kind of the present round.
        has_scripts: Whether it knows the scripts.
        pending: Bytes that the network has not delivered yet.
    """

    def __init__(self, name: str, clock: FakeClock) -> None:
        super().__init__(f"redis://{name}:1", clock, 60.0, 0.0, lambda _: None)
        self.chosen: Iterator[int] = itertools.repeat(0)
        self.kind = KINDS["grant"]
        self.has_scripts = True
        self.pending = bytearray()
        self._reader = hiredis.Reader()
        self.end: socket.socket | None = None

    def connect(self, *, is_spare: bool = False) -> NodeConnection:
        ours, self.end = socket.socketpair()
        self.end.setblocking(False)
        return NodeConnection(Connection(ours), votes_from=0.0, on_end=self._ended)

    def serve(self) -> None:
        """Carry out the commands that have come."""
        assert self.end
        with contextlib.suppress(BlockingIOError):
            while data := self.end.recv(1 << 16):
                self._reader.feed(data)
        for command in iter(lambda: cast(Any, self._reader.gets()), False):
            self.pending += self._answer(command)

    def deliver(self, size: int) -> None:
        assert self.end
        self.end.sendall(self.pending[:size])
        del self.pending[:size]

    def _answer(self, command: list[bytes]) -> bytes:
        name = command[0].decode()
        if name == "SCRIPT":
            self.has_scripts = True
            return bulk("0" * 40)
        if name == "EVALSHA":
            if not self.has_scripts:
                return NOSCRIPT
            name = _NAMES[command[1]]
        replies = self.kind.replies[name]
        return replies[next(self.chosen) % len(replies)]


class Said(NamedTuple):
    """What the nodes say in a round: the kind of it, and the choices of each node."""

    kind: str
    chosen: tuple[tuple[int, ...], ...]
    forgetful: frozenset[int] = frozenset()


class Stage:
    """A channel to three servers, through a network that delivers pieces of the given sizes."""

    def __init__(self, sizes: Sequence[int], order: Sequence[int]) -> None:
        self.clock = FakeClock()
        self.servers = [Server(f"node-{number}", self.clock) for number in range(NODES)]
        self.channel = Channel(self.servers, self.clock, node_timeout=1.0, connect_timeout=60.0)
        self.channel.prepare()
        self._sizes, self._order = itertools.cycle(sizes), itertools.cycle(order)
        poller = self.channel._connections.poller
        self._wait = poller.wait
        poller.wait = self.wait  # type: ignore[method-assign]

    def wait(self, seconds: float) -> Sequence[int]:
        """Stand in for the poller's wait: deliver the next piece."""
        for server in self.servers:
            server.serve()
        turns = [self.servers[number] for number in TURNS[next(self._order)]]
        if pending := [one for one in turns if one.pending]:
            pending[0].deliver(next(self._sizes))
        else:
            self.clock.move(seconds)
        return self._wait(0.0)

    def hold(self, said: Said) -> object:
        """Hold a round; return its verdict."""
        for number, server in enumerate(self.servers):
            server.serve()
            server.kind = KINDS[said.kind]
            server.chosen = itertools.cycle(said.chosen[number])
            server.has_scripts = number not in said.forgetful
        return KINDS[said.kind].ask(self.channel)

    def close(self) -> None:
        self.channel.close()
        for server in self.servers:
            if server.end:
                server.end.close()


def verdicts(said: Sequence[Said], sizes: Sequence[int], order: Sequence[int]) -> list[object]:
    """Return the verdicts of rounds on one channel."""
    stage = Stage(sizes, order)
    try:
        verdicts = [stage.hold(one) for one in said]
        # Every node is still up, and in step.
        assert stage.channel.everyone() == [0, 1, 2]
        return verdicts
    finally:
        stage.close()


def verdicts_in_one_piece(said: Sequence[Said]) -> list[object]:
    """Return the verdict of each round on a channel of its own, with whole replies."""
    return [verdict for one in said for verdict in verdicts([one], [WHOLE], [0, 1, 2])]


saying = st.builds(
    Said,
    st.sampled_from(sorted(KINDS)),
    st.tuples(*[st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)] * NODES),
    st.frozensets(st.integers(0, 2), max_size=1),
)


def verdicts_in_any_order(said: Said) -> list[object]:
    """Return the verdicts of a round with whole replies, by the order in which they come.

    Some depend on it: a round ends as soon as a majority has granted, or a node knows a done mark.
    """
    return [verdicts([said], [WHOLE], [turns])[0] for turns in range(len(TURNS))]


@settings(max_examples=50)
@given(
    said=st.lists(saying, min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    order=st.lists(st.integers(0, len(TURNS) - 1), min_size=1, max_size=6),
)
def test_verdicts_are_the_same_wherever_replies_are_cut(
    said: list[Said], sizes: list[int], order: list[int]
) -> None:
    for one, verdict in zip(said, verdicts(said, sizes, order), strict=True):
        assert verdict in verdicts_in_any_order(one)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("forgetful", [frozenset(), frozenset({0, 1, 2})], ids=["", "NOSCRIPT"])
def test_a_cut_at_any_byte_changes_no_verdict(kind: str, forgetful: frozenset[int]) -> None:
    for choice in (0, 2, 5):
        said = [Said(kind, ((choice,), (choice,), (0, choice, 1)), forgetful)] * 2
        expected = verdicts_in_one_piece(said)
        for first in range(1, 40):
            assert verdicts(said, [first, WHOLE], [0, 1, 2]) == expected
        for size in (1, 2, 3, 5, 8, 13, 21, 34):
            assert verdicts(said, [size], [0, 0, 1, 2]) == expected


def test_a_piece_is_not_taken_for_all_replies() -> None:
    """Of a batch, whose other replies are still on their way."""
    stage = Stage([4], [0, 1, 2])
    renewed = Said("extend", ((0,), (0,), (0,)))
    assert stage.hold(renewed) == stage.hold(renewed) == [Verdict.REACHED] * 3
    assert stage.channel.everyone() == [0, 1, 2]
    stage.close()


def test_a_reply_of_one_round_is_not_counted_in_the_next() -> None:
    """A lease that a rival has taken since is not renewed by it."""
    ours, rivals = ((0,),) * 3, ((0,), (1,), (1,))
    for first, order in itertools.product((4, 8), itertools.permutations(range(3))):
        stage = Stage([first, first, first, WHOLE], order)
        stage.hold(Said("extend", ours))
        after = stage.hold(Said("extend", rivals))
        assert after == verdicts_in_one_piece([Said("extend", rivals)])[0]
        assert stage.channel.everyone() == [0, 1, 2]
        stage.close()


# ---- one connection

REPLIES = (
    b":1\r\n", TOKEN, b"-ERR no\r\n", b"$-1\r\n", BUSY, b"$23\r\n%b\r\n" % TOKEN, b":-1\r\n",
    b":1\r\n",
)  # fmt: skip
STREAM = b"".join(REPLIES)
PUSH = b">2\r\n$1\r\na\r\n:1\r\n"


def shown(raws: Sequence[object]) -> list[str]:
    return [repr(raw) for raw in raws]


def parsed(stream: bytes, count: int) -> list[str]:
    reader = hiredis.Reader()
    reader.feed(stream)
    return shown([cast(Any, reader).gets() for _ in range(count)])


@pytest.fixture
def wire() -> Iterator[tuple[NodeConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = NodeConnection(Connection(ours), 0.0, on_end=lambda *_, **__: None)
    yield connection, theirs
    connection.disconnect()
    theirs.close()


def test_replies_are_the_same_wherever_they_are_cut(
    wire: tuple[NodeConnection, socket.socket],
) -> None:
    connection, theirs = wire
    expected = parsed(STREAM, len(REPLIES))
    for first, second in itertools.combinations(range(1, len(STREAM)), 2):
        connection.sent += len(REPLIES)
        raws: list[object] = []
        for piece in (STREAM[:first], STREAM[first:second], STREAM[second:]):
            theirs.sendall(piece)
            raws += connection.receive(0.0)
        assert shown(raws) == expected, (first, second)
    assert connection.received == connection.sent
    assert not connection.closed


def test_a_push_is_no_reply_wherever_it_is_cut(
    wire: tuple[NodeConnection, socket.socket],
) -> None:
    connection, theirs = wire
    stream = PUSH + b":1\r\n" + PUSH + b":2\r\n" + PUSH
    for cut in range(1, len(stream)):
        connection.sent += 2
        raws: list[object] = []
        for piece in (stream[:cut], stream[cut:]):
            theirs.sendall(piece)
            raws += connection.receive(0.0)
        assert raws == [1, 2], cut
        assert not connection.refuse_surplus()
    assert not connection.closed


def test_messages_are_the_same_wherever_they_are_cut() -> None:
    confirmed = push("subscribe", "released", 1)
    messages = push("message", "released", ":1\r\n") + push("message", "released", "b" * 30)
    stream = confirmed + messages
    for cut in range(1, len(stream)):
        server = Server("node", FakeClock())
        subscriptions = Subscriptions([server], server.clock, 60.0, 60.0)
        subscriptions.follow({"released"})
        heard: list[Message] = []
        for piece in (stream[:cut], stream[cut:]):
            server.pending += piece
            server.deliver(WHOLE)
            heard += subscriptions.hear(0.0)
        assert [message.payload for message in heard] == [b":1\r\n", b"b" * 30], cut
        assert subscriptions.reaches_quorum("released")
        subscriptions.close()
        assert server.end
        server.end.close()


class Direct(DirectConnection):
    """A direct connection over a socket pair."""

    def __init__(self) -> None:
        super().__init__("redis://node:1", FakeClock(), 60.0)
        ours, self.end = socket.socketpair()
        self._connection = NodeConnection(Connection(ours), 0.0, lambda *_, **__: None)
        self.error = None

    def close(self) -> None:
        super().close()
        self.end.close()


def test_direct_replies_are_the_same_wherever_they_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = parsed(STREAM, len(REPLIES))
    for cut in range(1, len(STREAM)):
        direct = Direct()
        direct.send(packed([("ONE",)] * 3), 3)
        direct.send(packed([("TWO",)] * 5), 5)
        pieces = iter((STREAM[:cut], STREAM[cut:]))
        wait = direct._poller.wait

        def deliver(
            seconds: float,
            direct: Direct = direct,
            pieces: Iterator[bytes] = pieces,
            wait: Callable[[float], Sequence[int]] = wait,
        ) -> Sequence[int]:
            direct.end.sendall(next(pieces, b""))
            return wait(0.0)

        monkeypatch.setattr(direct._poller, "wait", deliver)
        three, five = direct.receive(3), direct.receive(5)
        assert isinstance(three, list)
        assert isinstance(five, list)
        assert shown(three + five) == expected, cut
        assert (len(three), len(five)) == (3, 5)
        direct.close()
