"""A small object store that speaks as much of S3 over HTTP as conditional writes need."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

_MISSING = b"<Error><Code>NoSuchKey</Code><Message>missing</Message></Error>"
_FAILED = b"<Error><Code>PreconditionFailed</Code><Message>changed</Message></Error>"


class _Object(NamedTuple):
    body: bytes
    etag: str


class ObjectStore(ThreadingHTTPServer):
    """A store on 127.0.0.1, in this process; stopped by leaving its block."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, _Object] = {}
        self.writing = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        found = self.server.objects.get(self.path)
        if found is None:
            self._answer(404, _MISSING)
            return
        self._answer(200, found.body, {"ETag": found.etag})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        # As in S3, of the content only: equal content has an equal ETag.
        etag = f'"{hashlib.md5(body).hexdigest()}"'  # noqa: S324
        with self.server.writing:
            now = self.server.objects.get(self.path)
            if_match, if_none = self.headers.get("If-Match"), self.headers.get("If-None-Match")
            if (if_match and (now is None or now.etag != if_match)) or (if_none == "*" and now):
                self._answer(412, _FAILED)
                return
            self.server.objects[self.path] = _Object(body, etag)
        self._answer(200, b"", {"ETag": etag})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
