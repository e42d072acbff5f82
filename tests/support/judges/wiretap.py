"""What Redis servers are told, and when: the order of events on several of them.

    with Wiretap([*nodes.urls, results]) as tap:
        ...
        freed = tap.commands('"DEL"', key)

They take the time from this machine's clock: it compares with that of other servers, and with
`time.time()`.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Command:
    """One command that a server has run, possibly for a script.

    Attributes:
        at: When, in seconds since the epoch.
        port: Which server.
        text: As MONITOR shows it: who asked, then each word in quotes.
    """

    at: float
    port: int
    text: str


class Wiretap:
    """Listens to servers on this machine; started and stopped by `with`.

    Args:
        urls: Their addresses.
    """

    def __init__(self, urls: Iterable[str]) -> None:
        self._ports = {urlsplit(url).port or 6379 for url in urls}
        self._selector = selectors.DefaultSelector()
        self._heard: list[Command] = []
        self._rest = dict.fromkeys(self._ports, b"")
        self._is_ending = False
        self._thread = threading.Thread(target=self._listen, name="wiretap", daemon=True)

    def __enter__(self) -> Self:
        for port in self._ports:
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            self._selector.register(connection, selectors.EVENT_READ, port)
            connection.sendall(b"MONITOR\r\n")
            assert connection.recv(5) == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            self._hang_up(key)
        self._selector.close()

    def commands(self, *words: str) -> list[Command]:
        """Return the commands so far in which all of `words` are, in the order of their times."""
        found = [one for one in self._heard if all(word in one.text for word in words)]
        return sorted(found, key=lambda one: one.at)

    def _listen(self) -> None:
        while not self._is_ending:
            for key, _ in self._selector.select(_LOOK_S):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                if not data:  # the server has ended
                    self._hang_up(key)
                port = key.data
                *lines, self._rest[port] = (self._rest[port] + data).split(b"\r\n")
                for line in lines:
                    at, _, text = line.decode(errors="replace").removeprefix("+").partition(" ")
                    self._heard.append(Command(float(at), port, text))

    def _hang_up(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        assert isinstance(key.fileobj, socket.socket)
        key.fileobj.close()
