"""In-memory nodes: servers in threads of this process, which need no Redis on the machine.

```python
with start_memory_servers(3) as nodes:
    redlock = Redlock(nodes.urls)
    nodes[0].pause()
```

They run the rules of the lock's scripts, and know the commands of the lock alone. They can't be a
broker or a result backend.
"""

from __future__ import annotations

import secrets
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import hiredis

from celery_redlock.redlock.transport.connection import ErrorReply

from .group import Group, Node
from .launch import free_port
from .memory_node import MemoryNode

_RECEIVE_BYTES = 1 << 16
_NOTHING: Any = False
"""What hiredis returns while a command is incomplete."""


class MemoryServer(Node, MemoryNode):
    """One in-memory node on 127.0.0.1, empty; started and stopped by `with`.

    Attributes:
        port: TCP port, final once the server has started.
        run_id: Run id, which changes with each start.
    """

    _client_options = {"protocol": 2}  # noqa: RUF012  # nothing changes it

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.run_id = ""
        self._started_at = 0.0
        self._listener: _Listener | None = None
        self._connections: set[_Connection] = set()
        self._subscribers: dict[str, set[_Connection]] = {}
        self._executing = threading.Lock()
        self._may_run = threading.Event()
        self._may_run.set()

    def __repr__(self) -> str:
        return f"<MemoryServer {self.url} ({'running' if self.is_running else 'not running'})>"

    @property
    def is_running(self) -> bool:
        """Whether the node runs, paused or not."""
        return self._listener is not None

    def start(self) -> None:
        """Start the node, with the keys that it had; a running node is left alone.

        Raises:
            OSError: Its port is taken by now.
        """
        if self._listener is not None:
            return
        self.run_id, self._started_at = secrets.token_hex(20), self._now()
        self._listener = _Listener(self)
        # Polled by nobody: `shutdown` waits for one interval.
        run = threading.Thread(
            target=self._listener.serve_forever, args=(0.01,), name="redlock-node", daemon=True
        )
        run.start()

    def stop(self) -> None:
        """Stop the node and forget its keys."""
        self.kill()
        self.forget()

    def kill(self) -> None:
        """Close all connections, as a crash does; `start` brings the node back with its keys."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown()
            listener.server_close()
        for connection in list(self._connections):
            connection.close()
        self._may_run.set()

    def restart(self) -> None:
        """Stop and start the node on the same port, without its keys."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Answer nothing until `resume`; connections stay open."""
        self._may_run.clear()

    def resume(self) -> None:
        """Answer what has arrived during the pause, and go on."""
        self._may_run.set()

    def reset(self) -> None:
        """Return the node to running and empty, whatever was done to it."""
        self.start()
        self.resume()
        with self._executing:
            self.forget()
            self.is_full = False
            self.clock_ahead = 0.0

    # ---- what connections ask for

    def reply_to(self, connection: _Connection, command: list[bytes]) -> bytes:
        """Return the reply to one command, as it is sent."""
        self._may_run.wait()
        name = command[0].upper()
        with self._executing:
            if name in (b"SUBSCRIBE", b"UNSUBSCRIBE"):
                channels = [channel.decode() for channel in command[1:]]
                return self._subscribe(connection, name.decode().lower(), channels)
            return encoded(self.execute(tuple(command)))

    def on_connect(self, connection: _Connection) -> None:
        """Take note of a new connection."""
        self._connections.add(connection)
        if self._listener is None:
            connection.close()

    def on_disconnect(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)
        with self._executing:
            for followers in self._subscribers.values():
                followers.discard(connection)

    def listeners(self, channel: str) -> int:
        """Return how many clients hear of messages on `channel`."""
        return len(self._subscribers.get(channel, ()))

    def publish(self, channel: str, payload: str) -> None:
        """Send a message to those who hear of `channel`."""
        message = encoded([b"message", channel.encode(), payload.encode()])
        for connection in self._subscribers.get(channel, ()):
            connection.send(message)

    def _do_info(self, _section: str) -> bytes:
        uptime = max(0, int(self._now()) - int(self._started_at))
        return (
            "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\n"
            f"run_id:{self.run_id}\r\nuptime_in_seconds:{uptime}\r\n"
            "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"
        ).encode()

    def _subscribe(self, connection: _Connection, verb: str, channels: list[str]) -> bytes:
        mine = [name for name, followers in self._subscribers.items() if connection in followers]
        said = []
        for channel in channels or mine:
            followers = self._subscribers.setdefault(channel, set())
            if verb == "subscribe":
                followers.add(connection)
            else:
                followers.discard(connection)
            count = sum(connection in each for each in self._subscribers.values())
            said.append(encoded([verb.encode(), channel.encode(), count]))
        return b"".join(said) or encoded([verb.encode(), None, 0])


class _Listener(socketserver.ThreadingTCPServer):
    """Socket of one run of a node."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, node: MemoryServer) -> None:
        self.node = node
        super().__init__(("127.0.0.1", node.port), _Connection)


class _Connection(socketserver.BaseRequestHandler):
    """One client's connection, in a thread of its own."""

    request: socket.socket

    def setup(self) -> None:
        self._writing = threading.Lock()
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._node = cast("_Listener", self.server).node
        self._node.on_connect(self)

    def handle(self) -> None:
        reader = hiredis.Reader()
        with suppress(OSError):
            while data := self.request.recv(_RECEIVE_BYTES):
                reader.feed(data)
                for command in iter(reader.gets, _NOTHING):
                    self.send(self._node.reply_to(self, command))

    def finish(self) -> None:
        self._node.on_disconnect(self)

    def send(self, said: bytes) -> None:
        """Send a reply or a message."""
        with suppress(OSError), self._writing:
            self.request.sendall(said)

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


class MemoryServers(Group[MemoryServer]):
    """Several in-memory nodes, independent of each other; started and stopped by `with`."""

    __slots__ = ()


@contextmanager
def start_memory_servers(count: int) -> Iterator[MemoryServers]:
    """Start independent in-memory nodes, and stop them in the end.

    Args:
        count: Number of nodes, >= 1.

    Raises:
        OSError: A port that was free a moment ago is taken by now.
    """
    with MemoryServers(MemoryServer() for _ in range(count)) as nodes:
        yield nodes


def encoded(raw: object) -> bytes:
    """Return a raw reply, an error among them, in the servers' wire format."""
    # The most frequent first.
    if isinstance(raw, int):
        return b":%d\r\n" % raw
    if isinstance(raw, bytes):
        return b"$%d\r\n%b\r\n" % (len(raw), raw)
    if isinstance(raw, list):
        return b"*%d\r\n%b" % (len(raw), b"".join(map(encoded, raw)))
    if raw is None:
        return b"$-1\r\n"
    if isinstance(raw, ErrorReply):
        return b"-%b\r\n" % str(raw).encode()
    return encoded(str(raw).encode())
