"""TCP between simulated processes and servers: bytes in order, late, cut, broken, or half-open.

The real `NodeConnection` writes to these sockets and parses what it reads from them. A write is
taken in whole or in part; what was taken arrives in pieces, each at a time of its own, and what has
arrived when a socket is read is read together, wherever one reply ends and the next begins.
"""

from __future__ import annotations

from typing import Any

import hiredis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as ConnectionFailed

from celery_redlock.redlock.transport import redis_py
from celery_redlock.redlock.transport.connection import pack

from .link import Link
from .poller import Poller
from .process import Process
from .servers import CROWDED, HANGS_UP, LOCKED_OUT, shown

_LOGIN = pack(("AUTH", "password"))


class Socket:
    """The client's end of one connection: what `NodeConnection` needs of a socket."""

    __slots__ = (
        "_fd", "_in_clear", "_is_full", "_out_clear", "_under_way", "_unread", "_used_at", "inbox",
        "is_closed", "is_ended", "is_gone", "is_hung_up", "is_lost", "is_reset", "is_silent",
        "is_stranger", "link", "poller", "process", "server", "server_generation", "world",
    )  # fmt: skip

    def __init__(self, process: Process, link: Link) -> None:
        self.process = process
        self.world = process.world
        self.link = link
        self.server = link.server
        self.server_generation = link.server.generation
        self._fd = process.new_fd(self)
        self.inbox = b""
        self._unread = b""  # what the server has of a command that is not whole yet
        self._under_way = 0
        self._is_full = False
        self._used_at = self.world.time
        self.is_reset = self.is_ended = self.is_closed = False
        self.is_gone = False  # the connection does not exist any more at the server
        self.is_lost = False  # nor does what was under way
        self.is_silent = False  # the way has forgotten it
        self.is_hung_up = False  # nothing can be written
        self.is_stranger = False  # the server does not know who it is
        self.poller: Poller | None = None
        self._out_clear = self._in_clear = 0.0
        link.sockets.append(self)

    # ---- what the client does

    def settimeout(self, seconds: float) -> None:
        """Do nothing: it never blocks."""

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        """Write, all or a part: it arrives later, in order."""
        self.process.step()
        if self.is_reset or self.is_closed:
            raise ConnectionResetError("Connection reset by peer")
        if self.is_hung_up:
            raise BrokenPipeError("Broken pipe")
        world, link = self.world, self.link
        data = bytes(data)
        if not link.is_plain:
            data = self._send_in_pieces(data)
        else:
            self._out_clear = arrives_at = link.after(self._out_clear, link.out_until, world.time)
            if world.trace is not None:
                world.note(f"{self.process.name} -> {self.server.name} {shown(data)}")
            world.at(arrives_at, self._arrive, data)
        if link.loses and link.loses in data:
            link.loses = b""
            link.reset(is_heard=True)
        return len(data)

    def recv(self, size: int) -> bytes:
        """Read what has arrived; b"" once the server has closed the connection."""
        inbox = self.inbox
        if inbox:
            data, self.inbox = inbox[:size], inbox[size:]
            if not self.inbox and self.poller and not self.is_readable():
                self.poller.is_empty(self._fd)
            return data
        if self.is_reset:
            raise ConnectionResetError("Connection reset by peer")
        if self.is_ended:
            return b""
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
        return bool(self.inbox) or self.is_reset or self.is_ended

    def is_writable(self) -> bool:
        return self.is_reset or not self._is_full

    # ---- bytes that don't travel whole

    def _send_in_pieces(self, data: bytes) -> bytes:
        """Write a part or all, as the link is; return what was taken."""
        link, world = self.link, self.world
        if link.room:
            if self._is_full:
                raise BlockingIOError
            whole = len(data)
            data = data[: link.accepts(link.room - self._under_way)]
            self._is_full = len(data) < whole
        self._under_way += len(data)
        if self._is_forgotten():
            return data
        self._touch()
        arriving = data
        is_torn = 0 <= link.tears_out < len(data)
        if link.tears_out >= 0:
            arriving = data[: link.tears_out]
            link.tears_out = -1 if is_torn else link.tears_out - len(data)
        pieces = link.pieces(arriving) if arriving else []
        if world.trace is not None:
            sizes = "+".join(str(len(piece)) for piece in pieces)
            world.note(f"{self.process.name} -> {self.server.name} {sizes} bytes {shown(data)}")
        for piece in pieces:
            self._out_clear = link.after(self._out_clear, link.out_until, world.time)
            world.at(self._out_clear, self._arrive_in_part, piece)
        if is_torn:
            self._be_torn(self._out_clear)
        return data

    def _reply_in_pieces(self, data: bytes) -> None:
        """Send to the client in pieces; the connection may end in their middle."""
        link, world = self.link, self.world
        if self._is_forgotten():
            return
        self._touch()
        arriving = data
        is_torn = 0 <= link.tears_in < len(data)
        if link.tears_in >= 0:
            arriving = data[: link.tears_in]
            link.tears_in = -1 if is_torn else link.tears_in - len(data)
        for piece in link.pieces(arriving) if arriving else ():
            self._in_clear = link.after(self._in_clear, link.in_until, world.time)
            world.at(self._in_clear, self._deliver, piece)
        if is_torn:
            self._be_torn(self._in_clear)

    def _arrive_in_part(self, data: bytes) -> None:
        server = self.server
        if not server.does_work and server.waits(self._arrive_in_part, data):
            return
        self._under_way -= len(data)
        # As the kernel does: a socket is writable when a third of its room is free.
        if self._is_full and self._under_way * 3 <= self.link.room * 2:
            self._is_full = False
            if self.poller and not self.is_closed:
                self.poller.has_room(self._fd)
        self._arrive(data)

    def _touch(self) -> None:
        self._used_at = self.world.time
        if self.link.closes_after < 1e9:
            self.world.at(self._used_at + self.link.closes_after, self._close_if_idle)

    def _is_forgotten(self) -> bool:
        """Return whether the way has forgotten it: then nothing gets through any more."""
        if self.world.time - self._used_at > self.link.silent_after:
            self.is_silent = True
        return self.is_silent

    def _close_if_idle(self, _: Any) -> None:
        idle_s = self.world.time - self._used_at
        if idle_s >= self.link.closes_after - 1e-9 and self.is_connected():
            self.end()

    def _be_torn(self, at: float) -> None:
        """Break after what arrives until then: nothing that is written later gets through."""
        self.is_silent = True
        if not self.link.tears_silently:
            self.world.at(at, self._be_ended_by_server)

    def _be_ended_by_server(self, _: Any) -> None:
        """Have the server close its end: what it has sent arrives, and then the end."""
        self.is_gone = True
        self._unread = b""
        self._in_clear = self.link.after(self._in_clear, self.link.in_until, self.world.time)
        self.world.at(self._in_clear, self._be_ended)

    # ---- what happens to it

    def lose(self, *, is_heard: bool) -> None:
        """Lose what is under way, and the connection at the server."""
        self.is_lost = self.is_gone = True
        if is_heard:
            self.world.at(self.world.time + self.link.delay(), self._be_reset)

    def begin_idling(self) -> None:
        """Count its idle time from now on."""
        self._touch()

    def end(self) -> None:
        """Have the server close it, after what it has sent."""
        self._be_ended_by_server(None)

    def hang_up(self, said: bytes) -> None:
        """Have the server say something and close it, before anything can be written."""
        self.inbox = said
        self.is_hung_up = self.is_gone = self.is_ended = True
        self.link.sockets.remove(self)  # no way lies between them that could lose it

    def _arrive(self, data: bytes) -> None:
        server, world, link = self.server, self.world, self.link
        if not server.does_work and server.waits(self._arrive, data):
            return  # the machine does not answer
        if self.is_gone or server.generation != self.server_generation:
            if not self.is_silent:
                self._in_clear = link.after(self._in_clear, link.in_until, world.time)
                world.at(self._in_clear, self._be_reset)
            return
        sidecar = link.sidecar
        if sidecar and sidecar.closes(data, world.time, is_executed=False):
            self.is_gone = True  # also where the client has died: the rest of a request is lost
            return
        made, self._unread = server.replies(self._unread + data, self)
        if made and not (sidecar and sidecar.closes(data, world.time, is_executed=True)):
            self.push(made)

    def is_connected(self) -> bool:
        """Return whether the server has this connection."""
        return not (self.is_closed or self.is_gone)

    def push(self, data: bytes) -> None:
        """Send to the client."""
        world, link = self.world, self.link
        if world.trace is not None:
            world.note(f"{self.server.name} => {self.process.name} {data[:60]!r}")
        if not link.is_plain:
            self._reply_in_pieces(data)
            return
        self._in_clear = arrives_at = link.after(self._in_clear, link.in_until, world.time)
        world.at(arrives_at, self._deliver, data)

    def _deliver(self, data: bytes) -> None:
        if self.is_closed or self.is_reset or self.is_lost:
            return
        self.inbox += data
        if self.poller:
            self.poller.has_data(self._fd)

    def _be_ended(self, _: Any) -> None:
        if not self.is_closed:
            self.is_ended = True
            if self.poller:
                self.poller.has_data(self._fd)

    def _be_reset(self, _: Any) -> None:
        if not self.is_closed:
            self.is_reset = True
            if self.link.is_plain:
                self.inbox = b""  # as some systems do
            if self.poller:
                self.poller.has_data(self._fd)


class Connector(redis_py.Connector):
    """Stands in for the connector that makes redis-py's connections."""

    def __init__(self, process: Process, link: Link, timeout: float) -> None:
        self.timeout = timeout
        self.database = 0
        self._options = {}
        self._process = process
        self._link = link

    def new_connection(self, *, asks_for_nothing: bool = False) -> Any:
        return Connection(self._process, self._link, self.timeout, logs_in=not asks_for_nothing)


class Connection:
    """Stands in for a connection of redis-py.

    It logs in only where that fails: elsewhere it is a round trip that tries nothing.
    """

    def __init__(
        self, process: Process, link: Link, timeout: float, *, logs_in: bool = True
    ) -> None:
        self._process, self._link, self._timeout = process, link, timeout
        self._logs_in = logs_in
        self._sock: Socket | None = None

    def connect(self) -> None:
        """Open it, at the first address of the server's name that answers.

        Raises:
            OSError: The server is down, or does not answer.
            RedisError: It refuses the login, or hangs up before.
        """
        process, link = self._process, self._link
        process.step()
        world, server = process.world, link.server
        if self._logs_in:  # the other one belongs to the same attempt
            link.attempts.append(world.time)
        for _ in range(link.dead_addresses):
            world.wait(process.until(self._timeout))
            process.step()
        answered_at = max(world.time + link.connects_in + link.delay(), link.out_until)
        answered_at = max(answered_at + link.delay(), link.in_until)
        gives_up_at = process.until(self._timeout)
        world.wait(min(answered_at, gives_up_at))
        process.step()
        if answered_at > gives_up_at:
            raise TimeoutError("timed out")
        if not server.is_up:
            raise ConnectionRefusedError("Connection refused")
        self._sock = socket = Socket(process, link)
        if server.state == CROWDED:
            socket.push(server.greeting())
            socket.end()
        elif server.state == HANGS_UP:
            socket.hang_up(server.greeting())
            if self._logs_in and len(link.attempts) % 2:
                self._log_in(socket)
        elif server.state == LOCKED_OUT:
            socket.is_stranger = True
            if self._logs_in:
                self._log_in(socket)

    def _log_in(self, socket: Socket) -> None:
        process, poller, reader = self._process, Poller(self._process), hiredis.Reader()
        unsent, gives_up_at = _LOGIN, process.now() + self._timeout
        while (reply := reader.gets()) is False:
            poller.register(socket.fileno(), writing=bool(unsent))
            if not poller.wait(gives_up_at - process.now()):
                raise TimeoutError("Timeout reading from socket")
            if unsent and socket.is_writable():
                try:
                    unsent = unsent[socket.send(unsent) :]
                except OSError as error:
                    raise ConnectionFailed(f"Error while writing to socket. {error}.")  # noqa: B904
            if socket.is_readable():
                if not (data := socket.recv(1 << 16)):
                    raise ConnectionError("Connection closed by server.")
                reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise AuthenticationError(str(reply))

    def disconnect(self) -> None:
        if self._sock:
            self._sock.close()
