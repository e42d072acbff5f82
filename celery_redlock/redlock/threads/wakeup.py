"""Wakeup of one thread by another, also between real threads under gevent."""

from __future__ import annotations

import contextlib
import os
import select
import sys

from .native import original

_LONGEST_WAIT_S = 3600.0
"""A poll takes its time-out as a C int of ms."""


class Wakeup:
    """Wakeup of the thread that waits for it; its `fd` can be polled along with others."""

    _fds: tuple[int, ...] = ()

    def __init__(self) -> None:
        # Looked up here: in another thread, eventlet's import of them might wait for ever. The
        # original read, since eventlet's never returns without data.
        self._read = original("os", "read")
        self._write = original("os", "write")
        self._select = original("select", "select")
        # Select fails from descriptor 1024 on, and a busy worker has that many connections.
        self._poll = original("select", "poll")() if sys.platform != "win32" else None
        self.fd, self._writing_end = self._fds = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._writing_end, False)
        if self._poll:
            self._poll.register(self.fd, select.POLLIN)

    def wake(self) -> None:
        """End the current wait, or else the next one. Safe in a signal handler."""
        # A full pipe wakes the thread already.
        with contextlib.suppress(BlockingIOError):
            self._write(self._writing_end, b"!")

    def wait(self, seconds: float) -> bool:
        """Return True as soon as this thread is woken, False after `seconds` or an hour."""
        seconds = min(max(0.0, seconds), _LONGEST_WAIT_S)
        if self._poll:
            self._poll.poll(seconds * 1000)
        else:
            self._select([self.fd], [], [], seconds)
        return self.clear()

    def clear(self) -> bool:
        """Forget earlier calls of `wake`; return whether there were any."""
        try:
            return bool(self._read(self.fd, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Close the descriptors; may be repeated."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)

    # Closed with the last reference: a late wake must not write to a file with the same number.
    __del__ = close
