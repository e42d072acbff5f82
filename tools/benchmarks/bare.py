"""The yardstick: the same scripts and commands over bare sockets, and nothing else of a lock.

No deadline, no token, no error is looked at; a reply that is late by a round is still counted off.
"""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import hiredis

from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.scripts import (
    ALL,
    GRANT,
    RELEASE,
    Argument,
    evalsha,
    lock_keys,
    reserving,
)

_TTL_MS, _FLOOR_TTL_MS, _SKEW_US = 5_000, 3_600_000, 1_000_000
_pack: Any = hiredis.pack_command


def grant(
    keys: tuple[str, str], owner: str, proposed: int, *, ttl_ms: int = _TTL_MS
) -> tuple[Argument, ...]:
    """Return the command that grants a lock, as an ordinary acquire sends it."""
    return evalsha(GRANT, keys, owner, ttl_ms, proposed, _SKEW_US, _FLOOR_TTL_MS)


def release(keys: tuple[str, str], owner: str, token: int) -> tuple[Argument, ...]:
    """Return the command that releases a lock, as an ordinary release sends it."""
    return evalsha(RELEASE, keys, owner, token, _FLOOR_TTL_MS)


class BareLock:
    """One socket to each port: write all, poll, stop at a quorum."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for port in ports]
        self._readers = [hiredis.Reader() for _ in self._sockets]
        self._poll = select.poll()
        self._index = {}
        for index, sock in enumerate(self._sockets):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._load_scripts(index)
            sock.setblocking(False)
            self._poll.register(sock, select.POLLIN)
            self._index[sock.fileno()] = index
        self._owed = [0] * len(self._sockets)
        self._quorum = majority(len(self._sockets))

    def _load_scripts(self, index: int) -> None:
        sock, reader = self._sockets[index], self._readers[index]
        sock.sendall(b"".join(_pack(("SCRIPT", "LOAD", script.text)) for script in ALL))
        loaded = 0
        while loaded < len(ALL):
            reader.feed(sock.recv(65536))
            while reader.gets() is not False:
                loaded += 1

    def acquire(self, key: str) -> tuple[str, int]:
        """Get the lock; return its owner and token."""
        owner, now_us, keys = secrets.token_hex(16), time.time_ns() // 1000, lock_keys("bare", key)
        self._round([grant(keys, owner, now_us)], lambda reply: isinstance(reply, bytes))
        return owner, now_us

    def reserve(self, key: str) -> None:
        """Get the lock as a message does."""
        [lock, _] = lock_keys("bare", key)
        # The last reply says how long it stands.
        self._round(reserving(lock, secrets.token_hex(16), _TTL_MS), lambda reply: reply > 0)

    def release(self, key: str, owner: str, token: int) -> None:
        """Give the lock back."""
        keys = lock_keys("bare", key)
        self._round([release(keys, owner, token)], lambda reply: reply in (0, 1))

    def acquire_and_release(self, key: str) -> None:
        """Get the lock and give it back."""
        self.release(key, *self.acquire(key))

    def _round(self, commands: list[tuple[Any, ...]], is_good: Callable[[Any], bool]) -> None:
        payload = b"".join(map(_pack, commands))
        for index, sock in enumerate(self._sockets):
            sock.send(payload)
            self._owed[index] += len(commands)
        good = 0
        while good < self._quorum:
            for fd, _ in self._poll.poll(50):
                index = self._index[fd]
                reader = self._readers[index]
                reader.feed(self._sockets[index].recv(65536))
                while (reply := reader.gets()) is not False:
                    self._owed[index] -= 1
                    if not self._owed[index] and is_good(reply):
                        good += 1

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()
