"""Direct connection to one node, for the questions of an operator. Not for locking."""

from __future__ import annotations

import math
from collections.abc import Sequence

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import Argument
from celery_redlock.redlock.validation import address_of

from .connection import ErrorReply, NodeConnection, pack
from .poller import new_poller
from .redis_py import ERRORS, Connector

__all__ = ["DirectConnection", "ErrorReply", "packed"]


class DirectConnection:
    """Connection to one server, whatever its role: nothing of what a node must be is checked.

    For one thread at a time. After an error it stays closed.

    Args:
        url: URL of the server.
        clock: Time.
        timeout: Longest time for a connection attempt and for each wait for replies, seconds.

    Attributes:
        name: Address of the server, as in all logs.
        database: Number of the database.
        error: Reason why the connection is closed; None while it is open.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(self, url: str, clock: Clock, timeout: float) -> None:
        self.name = address_of(url)
        self.error: str | None = "not connected yet"
        self._clock = clock
        self._connector = Connector(url, self.name, timeout)
        self.database = self._connector.database
        self._poller = new_poller()
        self._connection: NodeConnection | None = None
        self._arrived: list[object] = []

    def connect(self) -> None:
        """Connect; if that fails, `error` has the reason."""
        redis_connection = self._connector.new_connection()
        try:
            redis_connection.connect()
            self._connection = NodeConnection(redis_connection, math.inf, lambda *_, **__: None)
        except ERRORS as error:
            redis_connection.disconnect()
            self.error = self._connector.without_secrets(error)
        else:
            self.error = None

    def ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[object] | Failed:
        """Send commands, and return the reply to each; an error reply is an `ErrorReply`."""
        self.send(packed(commands), len(commands))
        return self.receive(len(commands))

    def send(self, payload: bytes, count: int) -> None:
        """Send `count` packed commands, without a wait for their replies."""
        if self._connection:
            self._connection.send(payload, count, self._clock.now())

    def receive(self, count: int) -> list[object] | Failed:
        """Return the next `count` replies, or the reason why they don't come."""
        raws, connection = self._arrived, self._connection
        if connection is None:
            return Failed(str(self.error))
        while not connection.closed and len(raws) < count:
            self._poller.register(connection.fd, writing=connection.is_blocked)
            if not self._poller.wait(self._connector.timeout):
                connection.fail(f"it did not answer within {self._connector.timeout:g} s")
            connection.flush()
            raws += connection.receive(self._clock.now())
            connection.refuse_surplus()
        if not connection.closed:
            self._arrived = raws[count:]
            return raws[:count]
        # A server that is full says so, and closes the connection, be it before it was asked.
        raws += connection.receive(self._clock.now())
        said = next((str(raw) for raw in raws if isinstance(raw, ErrorReply)), connection.closed)
        self.fail(said)
        return Failed(said)

    def close(self) -> None:
        """Close the connection."""
        self.fail("closed")

    def fail(self, why: str) -> None:
        """Close the connection for a reason."""
        self.error = self.error or why
        if self._connection:
            self._connection.disconnect()
            self._connection = None


def packed(commands: Sequence[tuple[Argument, ...]]) -> bytes:
    """Return commands in the servers' wire format."""
    return b"".join(map(pack, commands))
