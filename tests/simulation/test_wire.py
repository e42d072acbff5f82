"""The simulated network: bytes stay in order and whole, however they are cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as ConnectionFailed

from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.protocol.scripts import RELEASE, lock_keys
from celery_redlock.redlock.transport.connection import pack

from .installation import installed
from .link import Link, Sidecar
from .poller import Poller
from .process import Process
from .run import Run
from .schedule import Client, Fault, Schedule, Use
from .servers import CROWDED, FULL, HANGS_UP, LOADING, LOCKED_OUT, MISCONF, REPLICA, Server
from .wire import Connection, Socket
from .world import World

_KEY = "redlock:{a}"
_SETS = b"".join(pack(("SET", _KEY, f"value {number}" * 20)) for number in range(20))
_GET = pack(("GET", _KEY))


class Ends:
    """One connection, and what its client reads."""

    def __init__(self, seed: int = 1, cutting: float = 0.0, room: int = 0) -> None:
        self.world = World()
        self.server = Server(self.world, "n0", 1.0, 0.0)
        chance = random.Random(seed)
        self.link = Link(self.server, chance, 0.002, cutting, room)
        self.process = Process(self.world, "c0", 1.0, 0.0, 0.0, [], chance)
        self.reads: list[bytes] = []
        self.taken: list[int] = []
        self.is_over = False

    def run(self, body: Callable[[Socket], object]) -> None:
        self.world.start(self.process, "main", lambda: body(Socket(self.process, self.link)))
        self.world.run()

    def send_all(self, socket: Socket, data: bytes) -> None:
        """Write as `NodeConnection` does, and wait for room."""
        poller = Poller(self.process)
        while data:
            try:
                self.taken.append(socket.send(data))
                data = data[self.taken[-1] :]
            except BlockingIOError:
                poller.register(socket.fileno(), writing=True)
                assert poller.wait(5.0)
                if socket.is_readable():
                    self.reads.append(socket.recv(1 << 16))

    def read(self, socket: Socket, seconds: float = 1.0) -> bytes:
        """Return all that arrives before nothing does for so long, or the end."""
        poller = Poller(self.process)
        poller.register(socket.fileno(), writing=False)
        while poller.wait(seconds):
            self.reads.append(socket.recv(1 << 16))
            if not self.reads[-1]:
                self.is_over = True
                break
        return b"".join(self.reads)


@pytest.mark.parametrize("room", [0, 100, 1500])
def test_cut_bytes_arrive_in_order_and_whole(room: int) -> None:
    reads: set[int] = set()
    for seed in range(30):
        ends = Ends(seed, cutting=0.9, room=room)

        def body(socket: Socket, ends: Ends = ends) -> None:
            ends.send_all(socket, _SETS)
            assert ends.read(socket) == b"$2\r\nOK\r\n" * 20

        ends.run(body)
        assert ends.server._get(_KEY) == "value 19" * 20
        assert (len(ends.taken) > 1) == bool(room)
        reads |= {len(read) for read in ends.reads}
    # Within a reply, and, if requests don't trickle, several at once.
    assert any(size % 8 for size in reads)
    assert room == 100 or any(size > 8 for size in reads)


def test_a_write_that_is_not_cut_arrives_at_once() -> None:
    ends = Ends()

    def body(socket: Socket) -> None:
        socket.send(_SETS)
        ends.read(socket)

    ends.run(body)
    assert ends.reads == [b"$2\r\nOK\r\n" * 20]


@pytest.mark.parametrize("after", [0, 1, 7, 8, 300])
def test_a_torn_request_does_what_came_before_the_tear(after: int) -> None:
    ends = Ends(cutting=0.9)
    one = pack(("SET", _KEY, "v"))

    def body(socket: Socket) -> None:
        ends.link.tear(len(one) * 2 + after, is_reply=False, is_silent=False)
        for _ in range(20):
            socket.send(one)
        ends.read(socket)
        assert ends.is_over

    sets: list[str] = []
    ends.server.on_set = lambda key, value: sets.append(value)
    ends.run(body)
    assert len(sets) == 2 + after // len(one)


def test_a_torn_reply_ends_at_its_byte() -> None:
    ends = Ends(cutting=0.9)

    def body(socket: Socket) -> None:
        ends.link.tear(21, is_reply=True, is_silent=False)
        socket.send(_SETS)
        assert ends.read(socket) == (b"$2\r\nOK\r\n" * 20)[:21]
        assert ends.is_over

    ends.run(body)


def test_nobody_hears_of_a_connection_that_vanishes() -> None:
    ends = Ends()

    def body(socket: Socket) -> None:
        ends.link.tear(10, is_reply=False, is_silent=True)
        socket.send(_SETS)
        socket.send(_GET)
        assert ends.read(socket, 60.0) == b""
        assert not ends.is_over

    ends.run(body)


@pytest.mark.parametrize(("is_executed", "calls"), [(False, 1), (True, 2)])
def test_a_sidecar_closes_all_connections_as_a_script_is_called(
    is_executed: bool, calls: int
) -> None:
    ends = Ends()
    call = pack(("EVALSHA", RELEASE.sha, 2, *lock_keys("redlock", "a"), "me", 7, 60_000))

    def body(socket: Socket) -> None:
        other = Socket(ends.process, ends.link)
        ends.link.sidecar = Sidecar([ends.link], 1, is_executed=is_executed)
        socket.send(_GET)
        assert ends.read(socket, 0.1) == b"$-1\r\n"
        socket.send(call)
        for end in (socket, other):
            with pytest.raises(ConnectionResetError):
                ends.read(end)
        new = Socket(ends.process, ends.link)
        ends.reads = []
        new.send(call)
        assert ends.read(new) == b":0\r\n"

    release = Mock(wraps=ends.server._release)
    ends.server._scripts[RELEASE.sha] = release
    ends.run(body)
    assert release.call_count == calls


@pytest.mark.parametrize(("pause", "answers"), [(0.2, True), (0.4, False)])
def test_an_idle_connection_is_forgotten_in_silence(pause: float, answers: bool) -> None:
    ends = Ends()

    def body(socket: Socket) -> None:
        ends.link.end_idle(silent_after=0.3)
        for _ in range(3):
            ends.process.sleep(pause)
            socket.send(_GET)
            assert (ends.read(socket, 0.05) != b"") == answers

    ends.run(body)
    assert not ends.is_over


@pytest.mark.parametrize(("pause", "ends_it"), [(0.02, False), (0.2, True)])
def test_an_idle_connection_is_closed_by_the_server(pause: float, ends_it: bool) -> None:
    ends = Ends()

    def body(socket: Socket) -> None:
        ends.link.end_idle(closes_after=0.1)
        for _ in range(3):
            if not ends.is_over:
                ends.process.sleep(pause)
                ends.read(socket, 0.0)
                if not ends.is_over:
                    socket.send(_GET)
                    ends.process.sleep(0.02)
        assert ends.is_over == ends_it

    ends.run(body)


def test_the_first_address_is_waited_for() -> None:
    ends = Ends()
    ends.link.dead_addresses = 1

    def body(_: Socket) -> None:
        began = ends.world.time
        Connection(ends.process, ends.link, 0.5).connect()
        assert 0.5 < ends.world.time - began < 0.6

    ends.run(body)


_GRANT_LIKE = pack(("SET", _KEY, "v")) + _GET + pack(("INFO", "replication"))


@pytest.mark.parametrize(
    ("state", "replies"),
    [
        (FULL, [b"-OOM", b"$-1", b"role:master"]),
        (REPLICA, [b"-READONLY", b"$-1", b"role:slave\r\nmaster_replid:n0-1"]),
        (LOADING, [b"-LOADING", b"-LOADING", b"role:master"]),
        (MISCONF, [b"-MISCONF", b"$-1", b"role:master"]),
        (CROWDED, [b"$2\r\nOK", b"$1\r\nv", b"role:master"]),
    ],
)
def test_a_state_refuses_until_it_is_left(state: str, replies: list[bytes]) -> None:
    ends = Ends()

    def body(socket: Socket) -> None:
        ends.server.enter(state)
        socket.send(_GRANT_LIKE)
        ends.read(socket)
        ends.server.leave(state)
        socket.send(_GRANT_LIKE)
        ends.read(socket)

    ends.run(body)
    refused, done = ends.reads
    at = 0
    for reply in replies:
        at = refused.index(reply, at)
    assert done.startswith(b"$2\r\nOK\r\n$1\r\nv\r\n")
    assert b"role:master" in done


def test_a_crowded_node_says_so_and_closes() -> None:
    ends = Ends()
    ends.server.enter(CROWDED)

    def body(_: Socket) -> None:
        connection = Connection(ends.process, ends.link, 0.5)
        connection.connect()
        assert connection._sock
        assert ends.read(connection._sock) == b"-ERR max number of clients reached\r\n"
        assert ends.is_over

    ends.run(body)


def test_to_a_node_that_hangs_up_nothing_can_be_written() -> None:
    ends = Ends()
    ends.server.enter(HANGS_UP)

    def body(_: Socket) -> None:
        with pytest.raises(ConnectionFailed, match="Broken pipe"):
            Connection(ends.process, ends.link, 0.5).connect()
        connection = Connection(ends.process, ends.link, 0.5, logs_in=False)
        connection.connect()
        assert connection._sock
        with pytest.raises(BrokenPipeError):
            connection._sock.send(_GET)
        assert ends.read(connection._sock) == b"-ERR max number of clients reached\r\n"
        assert ends.is_over

    ends.run(body)


@pytest.mark.parametrize("room", [0, 12])
def test_only_who_is_new_is_locked_out(room: int) -> None:
    ends = Ends(cutting=0.9, room=room)
    server, world = ends.server, ends.world
    server.enter(LOCKED_OUT)

    def reply(socket: Socket) -> bytes:
        ends.reads = []
        ends.send_all(socket, _GET)
        return ends.read(socket, 0.1)

    def body(known: Socket) -> None:
        with pytest.raises(AuthenticationError, match=r"^WRONGPASS .{1000}"):
            Connection(ends.process, ends.link, 0.5).connect()
        stranger = Connection(ends.process, ends.link, 0.5, logs_in=False)
        stranger.connect()
        assert stranger._sock
        assert reply(stranger._sock).startswith(b"-WRONGPASS ")
        assert reply(known) == b"$-1\r\n"
        # It accepts the login that waits while it hangs.
        server.hang()
        world.at(world.time + 0.2, server.leave, LOCKED_OUT)
        world.at(world.time + 0.3, lambda _: server.go_on())
        new = Connection(ends.process, ends.link, 0.5)
        new.connect()
        assert new._sock
        assert reply(new._sock) == b"$-1\r\n"

    ends.run(body)


@pytest.mark.parametrize("state", [CROWDED, HANGS_UP, LOCKED_OUT])
def test_a_node_is_used_soon_after_it_accepts(state: str) -> None:
    uses = (Use(0.0, "a", 0.6, 0.0, 0.0, "acquire"), Use(0.0, "a", 0.6, 4.0, 0.0, "acquire"))
    schedule = Schedule(
        1, ((1.0, 0.0),) * 3, 0.001, (Client(1.0, 0.0, 0.0, uses, ()),),
        tuple(Fault(0.0, 2.0, state, node) for node in (0, 1)),
    )  # fmt: skip
    with installed() as simulated:
        run = Run(simulated, schedule, is_traced=True, guard=False)
        errors: list[Exception] = []
        run.promises[0].note_refused = lambda *args: errors.append(args[-1])  # type: ignore[method-assign]
        outcome = run.outcome()
    assert outcome.violation is None
    [error] = errors
    said = "WRONGPASS" if state == LOCKED_OUT else "ERR max number of clients reached"
    assert isinstance(error, QuorumUnavailable)
    assert [why.startswith(said) for why in error.errors.values()] == [True, True]
    acquired_at = next(float(line.split()[0]) for line in outcome.trace if "acquires" in line)
    assert 2.0 < acquired_at < 3.0
    for link in run.links[0][:2]:
        assert 5 < len([at for at in link.attempts if at < 1002.0]) < 12


def test_a_full_node_still_renews_what_it_has() -> None:
    world = World()
    server = Server(world, "n0", 1.0, 0.0)
    server._set(_KEY, "v", 100.0)
    server.enter(FULL)
    server._pexpire(_KEY, 900.0)
    assert 800 < server._pttl(_KEY) <= 900
