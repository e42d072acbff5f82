"""The tax office: a slow external HTTP service, and a stand-in for it.

The billing task uses the client. To run the stand-in by hand, use
`python -m example_project.tax_office`. In the demo its door can be shut, so that a call stays
unanswered for as long as the demo needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

_PORT = 8025
_RATE_PERCENT = 20
_TIMEOUT_S = 120.0


def ask_for_tax(address: str, net_cents: int) -> int:
    """Return the tax on `net_cents`, in cents, as the office at `address` (host:port) says.

    Raises:
        OSError: The office could not be reached.
    """
    connection = HTTPConnection(address, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", f"/tax/{net_cents}")
        return int(connection.getresponse().read())
    finally:
        connection.close()


class TaxOffice(ThreadingTCPServer):
    """A stand-in for the tax office on this machine, with a door that can be shut."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0, work_seconds: float = 1.0) -> None:
        """Listen on `port` (0: any that is free) and answer every call after `work_seconds`."""
        super().__init__(("127.0.0.1", port), _Desk)
        self.work_seconds = work_seconds
        self.door = threading.Event()
        self.door.set()

    @property
    def address(self) -> str:
        """Where it listens, as host:port."""
        return f"127.0.0.1:{self.server_address[1]}"

    def shut(self) -> None:
        """Let calls wait from now on."""
        self.door.clear()

    def open(self) -> None:
        """Answer the waiting calls, and all later ones."""
        self.door.set()

    @contextmanager
    def serving(self) -> Iterator[TaxOffice]:
        """Answer calls on a thread inside the block."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.open()
            self.shutdown()
            self.server_close()


class _Desk(BaseHTTPRequestHandler):
    server: TaxOffice

    def do_GET(self) -> None:
        net_cents = int(self.path.rpartition("/")[2])
        self.server.door.wait()
        time.sleep(self.server.work_seconds)
        answer = str(net_cents * _RATE_PERCENT // 100).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing: the ledger is the record."""


if __name__ == "__main__":
    TaxOffice(_PORT).serve_forever()
