"""A network hop in front of a local server: what is sent arrives a while later, in both directions.

Started as a process of its own, which ends when its standard input does:
`python hop.py <seconds one way> <port of the server>` prints the port to connect to.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

ROUND_TRIPS_MS = (0, 1, 5)
"""How far away servers may be, there and back."""


@contextmanager
def reached(urls: Sequence[str], round_trip_ms: float) -> Iterator[list[str]]:
    """Return the URLs under which local servers are reached as if they were this far away."""
    one_way = round_trip_ms / 2000
    if not one_way:
        yield list(urls)
        return
    # Each is a process, so that none waits for another's turn.
    processes = [
        subprocess.Popen(
            [sys.executable, "-IS", __file__, str(one_way), str(urlsplit(url).port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for url in urls
    ]
    try:
        yield [f"redis://127.0.0.1:{int(_first_line(process))}" for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _relay(listener: socket.socket, port: int, one_way: float) -> None:
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for source, sink in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pump, args=(source, sink, one_way), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, one_way: float) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            time.sleep(one_way)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    _listener = socket.create_server(("127.0.0.1", 0))
    print(_listener.getsockname()[1], flush=True)  # noqa: T201  # this is how the port is told
    _arguments = (_listener, int(sys.argv[2]), float(sys.argv[1]))
    threading.Thread(target=_relay, args=_arguments, daemon=True).start()
    sys.stdin.read()
