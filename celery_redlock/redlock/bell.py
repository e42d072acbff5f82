"""A bell: one thread waits, another rings. Works between real threads under gevent, too."""

from __future__ import annotations

import contextlib
import os
import select
import sys

from .native import original

_LONGEST_WAIT_S = 3600.0
"""A poll takes its time-out as a C int of ms."""


class Bell:
    """Wakes a thread that waits for it; its `fd` can be waited for along with others."""

    def __init__(self) -> None:
        # Looked up now: in another thread eventlet's import of them might wait for ever. And its
        # own read never returns empty-handed.
        self._read = original("os", "read")
        self._write = original("os", "write")
        self._select = original("select", "select")
        # Select fails from descriptor 1024 on, and a busy worker has that many connections.
        self._poll = original("select", "poll")() if sys.platform != "win32" else None
        self.fd, self._ringing_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._ringing_end, False)
        if self._poll:
            self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """End a wait, the present or the next one. Safe in a signal handler."""
        # When the pipe is full it has been rung often enough to be heard.
        with contextlib.suppress(BlockingIOError):
            self._write(self._ringing_end, b"!")

    def wait(self, seconds: float) -> bool:
        """Return True once it has rung, False after `seconds` or an hour."""
        seconds = min(max(0.0, seconds), _LONGEST_WAIT_S)
        if self._poll:
            self._poll.poll(seconds * 1000)
        else:
            self._select([self.fd], [], [], seconds)
        return self.clear()

    def clear(self) -> bool:
        """Stop the ringing; tell whether there was any."""
        try:
            return bool(self._read(self.fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self.fd)
        os.close(self._ringing_end)
