"""A server that says whatever a test tells it to, over real connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import hiredis

if TYPE_CHECKING:
    from typing_extensions import Self

Says = bytes | Iterable[bytes]
"""What is said to a command: at once, or piece by piece, perhaps without end."""


def bulk(text: str | bytes) -> bytes:
    """Return a string as servers send it."""
    data = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%s\r\n" % (len(data), data)


def push(*parts: str | bytes | int) -> bytes:
    """Return a message of a subscription as servers send it."""
    encoded = [b":%d\r\n" % part if isinstance(part, int) else bulk(part) for part in parts]
    return b"*%d\r\n%s" % (len(parts), b"".join(encoded))


class FakeNode:
    """A node that takes every command and answers as it is told; started and stopped by `with`.

    Attributes:
        url: Its address.
        info: What INFO says.
        answers: By a command's name, what is said to it, or a function of the command that returns
            that. As it comes it passes for a master that grants nothing.
        heard: The commands it was sent.
    """

    def __init__(self, **info: object) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.info: dict[str, object] = {
            "redis_version": "7.0.15", "redis_mode": "standalone", "run_id": f"{id(self):040x}",
            "uptime_in_seconds": 1_000_000, "role": "master",
        } | info  # fmt: skip
        self.answers: dict[str, Says | Callable[[list[bytes]], Says]] = {
            "INFO": lambda _: bulk("".join(f"{name}:{self.info[name]}\r\n" for name in self.info)),
            "SCRIPT": bulk("0" * 40),
        }
        self.heard: list[list[bytes]] = []
        self._connections: list[socket.socket] = []
        self._is_closing = False
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        # Wakes the listening thread, which then accepts no other connection. Until it has ended, it
        # may have one that is not among `_connections` yet.
        with socket.create_connection(self._listener.getsockname()):
            self._listening.join()
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def heard_names(self) -> list[str]:
        """Return the names of the commands that it was sent."""
        return [command[0].decode().upper() for command in self.heard]

    def say(self, said: bytes) -> None:
        """Send `said` on every connection, unasked."""
        for connection in self._connections:
            connection.sendall(said)

    def hang_up(self) -> None:
        """Close every connection."""
        ended, self._connections = self._connections, []
        for connection in ended:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _listen(self) -> None:
        while not self._is_closing:
            connection, _ = self._listener.accept()
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                reader.feed(data)
                for command in iter(lambda: cast(Any, reader.gets()), False):
                    self.heard.append(command)
                    self._answer(connection, command)

    def _answer(self, connection: socket.socket, command: list[bytes]) -> None:
        answer = self.answers.get(command[0].decode().upper(), b"+OK\r\n")
        said = answer(command) if callable(answer) else answer
        for piece in [said] if isinstance(said, bytes) else said:
            connection.sendall(piece)
