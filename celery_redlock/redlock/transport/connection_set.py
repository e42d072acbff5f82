"""One connection to each node, made and mended in the background."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Sequence

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.threads import dispatch

from .connection import NodeConnection
from .node import Node
from .poller import Poller, new_poller

logger = logging.getLogger(__name__)
_GIVE_UP_S = 5.0
"""A connection that has owed for this long is replaced: not the node, the path may have died."""
_ASK_AGAIN_S = 5.0
"""Time after which a node is asked again whether it votes, while no quorum does."""


class ConnectionSet:
    """One connection to each of `nodes`, with one poller for all. For one thread at a time.

    Args:
        nodes: The servers.
        clock: Time.
        node_timeout: Longest wait for the rest of the nodes while a quorum is up, seconds.
        connect_timeout: Longest wait for a connection while fewer than a quorum are up, seconds.

    Attributes:
        by_node: Connection to each node; None: there is none.
        index_of: Index of the node, by descriptor of its connection.
        poller: Poller of all connections.
        dropped: Number of connections that were dropped so far.
    """

    def __init__(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> None:
        self.by_node: list[NodeConnection | None] = [None] * len(nodes)
        self.index_of: dict[int, int] = {}
        self.poller: Poller = new_poller()
        self.dropped = 0
        self._nodes = nodes
        self._quorum = majority(len(nodes))
        self._clock = clock
        self._node_timeout = node_timeout
        self._connect_timeout = connect_timeout
        # In C: an interrupt inside an Event's or a Condition's wait raises RuntimeError instead.
        self._arrivals: queue.SimpleQueue[tuple[int, NodeConnection | None]] = queue.SimpleQueue()
        self._connecting: set[int] = set()
        self._is_new = True

    def connected(self) -> list[int]:
        """Return the nodes that have a connection."""
        return [index for index, connection in enumerate(self.by_node) if connection]

    def _votes(self, now: float) -> int:
        return sum(one is not None and one.votes_from <= now for one in self.by_node)

    def mend(self, now: float, patience: float) -> None:
        """Make the missing connections; see `Channel.prepare`."""
        is_short = len(self.connected()) < self._quorum
        for index, connection in enumerate(self.by_node):
            is_free = connection is None and index not in self._connecting
            if is_free and (is_short or self._nodes[index].retry_at <= now):
                self._start_connecting(index)
        if is_short or self._is_new:
            self._wait_for_connections(now, patience)

    def _wait_for_connections(self, began: float, patience: float) -> None:
        """Wait for a quorum; a new channel waits a little longer, to start with all nodes.

        A new channel also waits while those that are connected are not the votes of a quorum: a
        lock that is acquired only now and then would fail for a node that is slow to connect.
        """
        while self._connecting:
            now = self._clock.now()
            enough = self._votes(now) if self._is_new else len(self.connected())
            is_short = enough < self._quorum
            longest = patience if is_short else min(patience, self._node_timeout)
            left = began + longest - now
            if left <= 0 or not (is_short or self._is_new):
                break
            self.adopt(left)
        self._is_new = False

    def introduce(self) -> None:
        """Wait until every node has been tried."""
        self._is_new = True
        self.adopt()
        for index, connection in enumerate(self.by_node):
            if connection is None and index not in self._connecting:
                self._start_connecting(index)
        deadline = self._clock.now() + 2 * self._connect_timeout
        while self._connecting and self._clock.now() < deadline:
            self.adopt(self._connect_timeout)
        self.mend(self._clock.now(), self._connect_timeout)

    def _start_connecting(self, index: int) -> None:
        self._connecting.add(index)
        self._nodes[index].attempt_begins(self._clock.now())
        name = f"redlock-connect-{self._nodes[index].name}"
        try:
            dispatch.start_beside(lambda: self._connect(index), name)
        except RuntimeError as error:
            # The existing connections may be enough.
            self._connecting.discard(index)
            self._nodes[index].failed(f"no thread can be started to connect: {error}")

    def _connect(self, index: int) -> None:
        connection = None
        try:
            connection = self._nodes[index].connect()
        except (ConnectionError, ConfigurationError):
            pass  # The node keeps it in `error` and reports it to the observers.
        except Exception as error:  # noqa: BLE001  # it is logged
            name = self._nodes[index].name
            dispatch.run_in_origin_thread(
                logger.error, "connecting failed unexpectedly node=%s", name, exc_info=error
            )
            self._nodes[index].failed(f"unexpectedly, {error!r}")
        self._arrivals.put((index, connection))

    def adopt(self, patience: float = 0.0) -> None:
        """Add the connections that are ready; wait up to `patience` seconds for the first."""
        while True:
            try:
                index, connection = self._arrivals.get(patience > 0, patience or None)
            except queue.Empty:
                return
            patience = 0.0
            self._connecting.discard(index)
            if connection:
                self.by_node[index] = connection
                self.index_of[connection.fd] = index
                self.poller.register(connection.fd, writing=False)

    def drop_useless(self, now: float) -> None:
        """Drop connections that broke, lead to another server by now, or have owed for too long."""
        for index, connection in enumerate(self.by_node):
            if not connection:
                continue
            if connection.sent > connection.received and now - connection.owed_since > _GIVE_UP_S:
                connection.fail(f"it has not answered for {_GIVE_UP_S:.0f} s", blames_node=True)
            elif connection.run_id != self._nodes[index].run_id:
                connection.fail("another server has its address now")
            if connection.closed:
                self.drop(index)
        self._drop_guarded(now)

    def _drop_guarded(self, now: float) -> None:
        """While no quorum votes, drop guarded nodes: an operator may have admitted them since."""
        if self._votes(now) >= self._quorum:
            return
        for index, one in enumerate(self.by_node):
            if (
                one
                and one.votes_from > now
                and one.identified_at <= now - _ASK_AGAIN_S
                and one.sent == one.received
            ):
                self.drop(index)

    def drop(self, index: int) -> None:
        """Close and forget the connection to a node."""
        connection = self.by_node[index]
        if connection:
            self.by_node[index] = None
            self.dropped += 1
            # Before the descriptor is closed: its number is the next connection's.
            del self.index_of[connection.fd]
            self.poller.unregister(connection.fd)
            connection.disconnect()

    def disown(self) -> None:
        """In a child: close this process's copies of the connections; they are the parent's."""
        for connection in self.by_node:
            if connection:
                connection.disown()

    def close(self) -> None:
        """Close every connection, in whatever state an interrupt has left them.

        New connections may be made afterwards.
        """
        self.adopt()
        connections, self.by_node = self.by_node, [None] * len(self._nodes)
        self.index_of, self.poller = {}, new_poller()
        for connection in connections:
            if connection:
                with contextlib.suppress(Exception):
                    connection.disconnect()
