"""TCP between simulated processes and servers: in order, late, cut, broken, or half-open."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from .process import Process
from .servers import Server, shown
from .world import Task


class Link:
    """The way between one process and one server, both directions.

    Attributes:
        slowness: Longest ordinary delay in one direction, seconds.
        out_until, in_until: Time until which nothing gets through to, or from, the server.
        loses: The next request with these bytes is lost, with all connections; b"": none.
    """

    __slots__ = ("_random", "in_until", "loses", "out_until", "server", "slowness", "sockets")

    def __init__(self, server: Server, chance: random.Random, slowness: float) -> None:
        self.server = server
        self._random = chance.random
        self.slowness = slowness
        self.out_until = 0.0
        self.in_until = 0.0
        self.loses = b""
        self.sockets: list[Socket] = []

    def delay(self) -> float:
        """Return how long the next segment takes, seconds."""
        return 0.0001 + self.slowness * self._random() ** 3

    def after(self, clear_at: float, opens_at: float, now: float) -> float:
        """Return when a segment arrives: not before the one before it, or before the way opens."""
        return max(clear_at, opens_at, now) + (0.0001 + self.slowness * self._random() ** 3)

    def cut(self, *, out_until: float, in_until: float) -> None:
        """Hold up what goes out to the server, and what comes in from it, until these times."""
        self.out_until = max(self.out_until, out_until)
        self.in_until = max(self.in_until, in_until)

    def reset(self, *, is_heard: bool) -> None:
        """Break all connections, with what is under way; without `is_heard` the client's end stays
        as it is: half-open."""
        for socket in self.sockets:
            socket.lose(is_heard=is_heard)
        self.sockets = []


class Socket:
    """The client's end of one connection: what `NodeConnection` needs of a socket."""

    __slots__ = (
        "_fd", "_in_clear", "_out_clear", "inbox", "is_closed", "is_lost", "is_reset",
        "link", "poller", "process", "server", "server_generation", "world",
    )  # fmt: skip

    def __init__(self, process: Process, link: Link) -> None:
        self.process = process
        self.world = process.world
        self.link = link
        self.server = link.server
        self.server_generation = link.server.generation
        self._fd = process.new_fd(self)
        self.inbox: deque[bytes] = deque()
        self.is_reset = self.is_closed = False
        self.is_lost = False  # the connection does not exist any more at the server
        self.poller: Poller | None = None
        self._out_clear = self._in_clear = 0.0
        link.sockets.append(self)

    # ---- what the client does

    def settimeout(self, seconds: float) -> None:
        """Do nothing: it never blocks."""

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        """Write: it arrives later, in order."""
        self.process.step()
        if self.is_reset or self.is_closed:
            raise ConnectionResetError("Connection reset by peer")
        world, link = self.world, self.link
        data = bytes(data)
        self._out_clear = arrives_at = link.after(self._out_clear, link.out_until, world.time)
        if world.trace is not None:
            world.note(f"{self.process.name} -> {self.server.name} {shown(data)}")
        world.at(arrives_at, self._arrive, data)
        if link.loses and link.loses in data:
            link.loses = b""
            link.reset(is_heard=True)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Read what has arrived."""
        inbox = self.inbox
        if inbox:
            data = inbox.popleft()
            if not inbox and self.poller and not self.is_reset:
                self.poller.is_empty(self._fd)
            return data
        if self.is_reset:
            raise ConnectionResetError("Connection reset by peer")
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        """Refuse; `close` lets everything arrive that was written."""
        raise OSError("not connected")

    def close(self) -> None:
        """Close this end; what was written still arrives."""
        if not self.is_closed:
            self.is_closed = True
            if self.poller:
                self.poller.is_empty(self._fd)
            self.process.ends.pop(self._fd, None)
            if self in self.link.sockets:
                self.link.sockets.remove(self)

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.is_reset

    # ---- what happens to it

    def lose(self, *, is_heard: bool) -> None:
        """Lose what is under way, and the connection at the server."""
        self.is_lost = True
        if is_heard:
            self.world.at(self.world.time + self.link.delay(), self._be_reset)

    def _arrive(self, data: bytes) -> None:
        server, world, link = self.server, self.world, self.link
        if server.waits(self._arrive, data) or not server.is_up:
            return  # the machine does not answer
        self._in_clear = arrives_at = link.after(self._in_clear, link.in_until, world.time)
        if self.is_lost or server.generation != self.server_generation:
            world.at(arrives_at, self._be_reset)
            return
        data = server.replies(data, self)
        if world.trace is not None:
            world.note(f"{server.name} => {self.process.name} {data[:40]!r}")
        world.at(arrives_at, self._deliver, data)

    def is_connected(self) -> bool:
        """Return whether the server has this connection."""
        return not (self.is_closed or self.is_lost)

    def push(self, data: bytes) -> None:
        """Send what the client has not asked for just now."""
        world, link = self.world, self.link
        self._in_clear = arrives_at = link.after(self._in_clear, link.in_until, world.time)
        if world.trace is not None:
            world.note(f"{self.server.name} => {self.process.name} {data[:60]!r}")
        world.at(arrives_at, self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.is_closed or self.is_reset or self.is_lost:
            return
        self.inbox.append(data)
        if self.poller:
            self.poller.has_data(self._fd)

    def _be_reset(self, _: Any) -> None:
        if not self.is_closed:
            self.is_reset = True
            self.inbox.clear()
            if self.poller:
                self.poller.has_data(self._fd)


class Poller:
    """Stands in for select.poll."""

    __slots__ = ("_fds", "_process", "_readable", "_task")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._fds: set[int] = set()
        # As the keys of a dict: in order, so that a run repeats exactly.
        self._readable: dict[int, None] = {}
        self._task: Task | None = None

    def register(self, fd: int, *, writing: bool) -> None:  # writing never blocks
        if fd in self._fds:
            return
        self._fds.add(fd)
        if end := self._process.ends.get(fd):
            end.poller = self
            if end.is_readable():
                self._readable[fd] = None

    def unregister(self, fd: int) -> None:
        self._fds.discard(fd)
        self._readable.pop(fd, None)

    def wait(self, seconds: float) -> Sequence[int]:
        """Return what is ready, as soon as something is."""
        process = self._process
        process.step()
        if self._readable or seconds <= 0:
            return list(self._readable)
        world = process.world
        self._task = world.current
        world.wait(process.until(seconds))
        self._task = None
        process.step()
        return list(self._readable)

    def has_data(self, fd: int) -> None:
        """Note that this is readable; wake who waits."""
        if fd in self._fds:
            self._readable[fd] = None
            if self._task:
                self._process.world.wake(self._task)

    def is_empty(self, fd: int) -> None:
        """Note that this is not readable any more."""
        self._readable.pop(fd, None)


class Connector:
    """Stands in for the connector that makes redis-py's connections."""

    def __init__(self, process: Process, link: Link, timeout: float) -> None:
        self.timeout = timeout
        self._process = process
        self._link = link

    def without_secrets(self, error: Exception) -> str:
        return str(error)

    def new_connection(self) -> Connection:
        return Connection(self._process, self._link, self.timeout)


class Connection:
    """Stands in for a connection of redis-py."""

    def __init__(self, process: Process, link: Link, timeout: float) -> None:
        self._process, self._link, self._timeout = process, link, timeout
        self._sock: Socket | None = None

    def connect(self) -> None:
        """Open it.

        Raises:
            OSError: The server is down, or does not answer.
        """
        process, link = self._process, self._link
        process.step()
        world, server = process.world, link.server
        answered_at = max(world.time + link.delay(), link.out_until)
        answered_at = max(answered_at + link.delay(), link.in_until)
        gives_up_at = process.until(self._timeout)
        world.wait(min(answered_at, gives_up_at))
        process.step()
        if answered_at > gives_up_at:
            raise TimeoutError("timed out")
        if not server.is_up:
            raise ConnectionRefusedError("Connection refused")
        self._sock = Socket(process, link)

    def disconnect(self) -> None:
        if self._sock:
            self._sock.close()
