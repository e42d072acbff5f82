"""Connections that are closed here and stay open until their server has read everything.

A reply to a closed socket is answered with a reset, and a server that meets one as it writes the
next reply throws away the commands that it has not read yet: releases.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from typing import Protocol

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_MOST = 32
_READ_SIZE = 1 << 16


class Connection(Protocol):
    """Connection of redis-py, as far as it is used here."""

    def disconnect(self) -> None:
        """Close it."""


_lingering: deque[tuple[socket.socket, Connection]] = deque()
"""Connections to close once their server has closed its end, having read everything."""


def linger(ended: socket.socket, connection: Connection) -> None:
    """Close a connection, which writes no more, once its server has read everything."""
    _lingering.append((ended, connection))
    close_lingering()


def close_lingering() -> None:
    """Close the lingering connections whose servers have read everything."""
    for _ in range(len(_lingering)):
        # Single operations: several threads may be here.
        try:
            ended, connection = _lingering.popleft()
        except IndexError:
            return
        if len(_lingering) < _MOST and not _has_ended(ended):
            _lingering.append((ended, connection))
        else:
            connection.disconnect()


def _has_ended(ended: socket.socket) -> bool:
    try:
        return ended.recv(_READ_SIZE) == b""
    except WOULD_BLOCK:
        return False
    except OSError:
        return True
