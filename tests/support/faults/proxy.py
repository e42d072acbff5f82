"""A TCP proxy that misbehaves on demand."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from celery_redlock.testing import free_port

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_TICK = 0.002
_PATIENCE = 60.0


@dataclass
class Direction:
    """What becomes of the bytes that travel one way; may be changed at any time, by any thread.

    Attributes:
        delay: Seconds by which they are late. Their order stays.
        drops: Whether they vanish.
        holds: Whether they wait, until this is False again. Meanwhile each connection reads once
            at most, so that the sender's buffers fill up.
        piece: Size of the pieces in which they arrive, bytes; 0: as they come.
        pause: Time before each piece, seconds.
        chance: Cuts and joins at random places what arrives, with pauses up to `pause`; None: it
            arrives as it comes, or in pieces of a size.
        reads: How many times bytes have come, of all connections.
        cuts: How many times `chance` has cut what there was to arrive.
        joins: How many times it has joined what came with what had not arrived yet.
    """

    delay: float = 0.0
    drops: bool = False
    holds: bool = False
    piece: int = 0
    pause: float = 0.0
    chance: random.Random | None = None
    reads: int = 0
    cuts: int = 0
    joins: int = 0

    def size_of_piece(self, data: bytes) -> int:
        """Return how many of these bytes arrive next."""
        if not (chance := self.chance):
            return self.piece or len(data)
        size = chance.choice((len(data), chance.randint(1, len(data))))
        self.cuts += size < len(data)
        return size

    async def rest(self) -> None:
        """Wait for the pause before a piece."""
        if chance := self.chance:
            await asyncio.sleep(chance.uniform(0.0, self.pause))
        elif self.piece:
            await asyncio.sleep(self.pause)

    async def end_of_hold(self) -> None:
        """Wait while bytes have to wait."""
        while self.holds:  # noqa: ASYNC110 - any thread may end it, by setting an attribute
            await asyncio.sleep(_TICK)


@dataclass(eq=False)
class _Path:
    """One connection through a proxy, which a firewall may have forgotten."""

    is_forgotten: bool = False


class Proxy:
    """Forwards a port of 127.0.0.1 to another, with faults; started and stopped by `with`.

    Args:
        target: The port to forward to. Nobody needs to listen there yet.

    Attributes:
        port: The proxy's own port.
        requests: From the client to the server.
        replies: From the server to the client.
    """

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.requests = Direction()
        self.replies = Direction()
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listener: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], _Path] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The address of a Redis server behind the proxy."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open through the proxy."""
        return len(self._connections)

    def black_hole(self) -> None:
        """Let everything sent in either direction vanish; connections stay open."""
        self.requests.drops = self.replies.drops = True

    def forget(self) -> None:
        """Let everything sent on the open connections vanish, as a firewall does; new ones work."""
        for path in list(self._connections.values()):
            path.is_forgotten = True

    def half_open(self) -> None:
        """Forward nothing, in either direction; connections stay open, and `heal` delivers."""
        self.requests.holds = self.replies.holds = True

    def forward_to(self, target: int) -> None:
        """Forward new connections to another port; those that are open go on."""
        self._target = target

    def cut(self, piece: int, pause: float) -> None:
        """Let bytes arrive in pieces of a size, in either direction, with a pause before each."""
        for direction in (self.requests, self.replies):
            direction.piece, direction.pause = piece, pause

    def scramble(self, chance: random.Random, pause: float) -> None:
        """Cut and join at random places what arrives, in either direction.

        Args:
            chance: Chooses the places.
            pause: Longest time before the next piece, seconds.
        """
        for direction in (self.requests, self.replies):
            direction.chance, direction.pause = random.Random(chance.getrandbits(32)), pause

    def refuse(self) -> None:
        """Refuse new connections; those that are open go on."""
        self._run(self._stop_listening())

    def reset(self) -> None:
        """Break every open connection with a TCP reset; new ones are welcome."""
        self._run(self._reset())

    def heal(self) -> None:
        """Undo all faults: be fast, forward, accept connections."""
        for direction in (self.requests, self.replies):
            direction.delay = 0.0
            direction.piece, direction.chance = 0, None
            direction.drops = direction.holds = False
        self._run(self._listen())

    def _run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            for one in self._listener.sockets:
                self._loop.remove_reader(one.fileno())
            # What was just accepted is attached to the listener in the loop's next turn. To one
            # that is closed by then it can't be, and asyncio would leave its socket open.
            await asyncio.sleep(0)
            self._listener.close()
            self._listener = None

    async def _reset(self) -> None:
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets are closed in the loop's next turn

    async def _end(self) -> None:
        """Break every connection, also those that are just being accepted."""
        await self._stop_listening()
        await self._reset()
        while len(asyncio.all_tasks()) > 1:
            await self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        path = self._connections[this] = _Path()
        writers = [writer]
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(server_writer)
            await _both(
                _forward(reader, server_writer, self.requests, path),
                _forward(server_reader, writer, self.replies, path),
            )
        except (OSError, asyncio.CancelledError):
            for one in writers:
                _abort(one)
        else:
            for one in writers:
                one.close()
        finally:
            del self._connections[this]


async def _both(
    first: Coroutine[object, object, None], second: Coroutine[object, object, None]
) -> None:
    """Run two coroutines; if one fails, so does the other."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    direction: Direction,
    path: _Path,
) -> None:
    """Forward bytes until the end of the stream, and that, too."""
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
    await _both(
        _receive(reader, under_way, direction),
        _deliver(under_way, writer, direction, path),
    )


async def _receive(
    reader: asyncio.StreamReader,
    under_way: asyncio.Queue[tuple[float, bytes]],
    direction: Direction,
) -> None:
    data = b"-"
    while data:
        # What comes first is noticed, also from who connects during a hold.
        data = await reader.read(65536)
        direction.reads += 1
        under_way.put_nowait((asyncio.get_running_loop().time() + direction.delay, data))
        await direction.end_of_hold()


async def _deliver(
    under_way: asyncio.Queue[tuple[float, bytes]],
    writer: asyncio.StreamWriter,
    direction: Direction,
    path: _Path,
) -> None:
    while True:
        due, data = await under_way.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        await direction.end_of_hold()
        if direction.drops or path.is_forgotten:
            continue
        is_over = not data
        while data:
            await direction.rest()
            while direction.chance and not under_way.empty():
                due, more = under_way.get_nowait()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                is_over = not more
                direction.joins += not is_over
                data += more
            size = direction.size_of_piece(data)
            writer.write(data[:size])
            await writer.drain()
            data = data[size:]
        if is_over:
            writer.write_eof()
            return


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with a reset: what was not sent yet is thrown away."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # its other end may have closed it
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
