"""One connection to each node, made and mended in the background."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.threads import callbacks, dispatch

from .connection import NodeConnection
from .node import Node
from .poller import Poller, new_poller

logger = logging.getLogger(__name__)
GIVE_UP_S = 5.0
"""A connection that has owed for this long is replaced: not the node, the path may have died."""
_HANGS_S = 0.5
"""Longest wait, if the node timeout is not longer, for a connection in the place of one that does
not answer: its server may hang."""
_ADDRESSES = 3
"""Addresses of a name that a caller waits for, each for the connect timeout."""
_LOOK_S = 0.05
"""Interval of looks whether an attempt of another channel has ended."""
_ASK_AGAIN_S = 5.0
"""Time after which a node is asked again whether it votes, while no quorum does."""


_Arrivals: TypeAlias = "queue.SimpleQueue[tuple[int, NodeConnection | None]]"
"""Ends of connection attempts: the node, and its connection if there is one."""


class ConnectionSet:
    """One connection to each of `nodes`, with one poller for all. For one thread at a time.

    Args:
        nodes: The servers.
        clock: Time.
        node_timeout: Longest wait for the rest of the nodes while a quorum is up, seconds.
        connect_timeout: Longest time for one address of a node, seconds.

    Attributes:
        patience: Longest wait for connections while fewer than a quorum are up, seconds.
        by_node: Connection to each node; None: there is none.
        index_of: Index of the node, by descriptor of its connection.
        poller: Poller of all connections.
        dropped: Number of connections that were dropped so far.
        adopted: Number of connections that were added so far.
    """

    def __init__(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> None:
        self.by_node: list[NodeConnection | None] = [None] * len(nodes)
        self._failed_at = [-math.inf] * len(nodes)
        self.index_of: dict[int, int] = {}
        self.poller: Poller = new_poller()
        self.dropped = self.adopted = 0
        self._nodes = nodes
        self._quorum = majority(len(nodes))
        self._clock = clock
        self._node_timeout = node_timeout
        self.patience = _ADDRESSES * connect_timeout
        # In C: an interrupt inside an Event's or a Condition's wait raises RuntimeError instead.
        self._arrivals: _Arrivals = queue.SimpleQueue()
        self._connecting: set[int] = set()

    def connected(self) -> list[int]:
        """Return the nodes that have a connection."""
        return [index for index, connection in enumerate(self.by_node) if connection]

    def _is_short(
        self,
        now: float,
        *,
        needs_votes: bool = True,
        besides: Mapping[int, NodeConnection] = MappingProxyType({}),
    ) -> bool:
        """Return whether fewer than a quorum are connected, of those that vote if need be.

        Args:
            now: Time, seconds on the clock.
            needs_votes: Whether only those count that vote.
            besides: Connections that do not count.
        """
        until = now if needs_votes else math.inf
        count = sum(
            one is not None and one.votes_from <= until and one is not besides.get(index)
            for index, one in enumerate(self.by_node)
        )
        return count < self._quorum

    def reconnect(
        self, now: float, patience: float, *, for_all: bool = False, needs_votes: bool = True
    ) -> None:
        """Make the missing connections; see `Channel.prepare`.

        Args:
            now: Time, seconds on the clock.
            patience: Longest wait while fewer than a quorum are up, seconds.
            for_all: Whether to wait for the rest as well, up to the node timeout.
            needs_votes: Whether a node inside its restart guard is none of a quorum.
        """
        self._start_due(now, is_short=for_all or self._is_short(now))
        # Who has no quorum starts with all nodes if possible.
        if for_all or self._is_short(now, needs_votes=needs_votes):
            # Whoever wants all may have just given connections up, which is no attempt to connect.
            given_up = self._given_up(now) if for_all else {}
            if given_up:
                patience = min(patience, max(self._node_timeout, _HANGS_S))
            self._wait_for_connections(
                now, patience, given_up, for_all=for_all, needs_votes=needs_votes
            )

    def _start_due(self, now: float, *, is_short: bool) -> None:
        """Start the connection attempts that back-off allows; it allows more if `is_short`."""
        for index, node in enumerate(self._nodes):
            retry_at = node.retry_short_at if is_short else node.retry_at
            if self._is_idle(index) and retry_at <= now:
                self._start_connecting(index)

    def _is_idle(self, index: int) -> bool:
        """Return whether a node has no connection, and none is being made."""
        return self.by_node[index] is None and index not in self._connecting

    def _wait_for_connections(
        self, began: float, patience: float, given_up: Mapping[int, float], *, for_all: bool,
        needs_votes: bool,
    ) -> None:  # fmt: skip
        """Wait for a quorum, and a little longer, to start with all nodes.

        Where votes are needed, connections to guarded nodes are not enough: a lock that is acquired
        only now and then would fail for a node that is slow to connect. Without a quorum, each
        missing node is waited for until an attempt has ended that was not over before, be it
        another channel's.
        """
        while True:
            now = self._clock.now()
            is_short = self._is_short(now, needs_votes=needs_votes)
            left = began + (patience if is_short else min(patience, self._node_timeout)) - now
            untried = self._untried(began, given_up) if is_short else []
            if for_all and not untried:
                # What broke the connections may have broken the attempt.
                untried = self._due(now, before=math.inf if is_short else began)
            if left <= 0 or not (self._connecting or untried):
                return
            if untried:
                self._start_due(now, is_short=for_all or self._is_short(now))
                left = min(left, self._pause(untried, now))
            # A guard that ends may bring the quorum.
            guards = [one.votes_from - now for one in self.by_node if one]
            left = min([left, *(guard for guard in guards if guard > 0)])
            if self._connecting:
                self.adopt(left)
            else:
                self._clock.sleep(left)

    def _given_up(self, began: float) -> dict[int, float]:
        """Return the nodes whose connection was given up since `began`, each with when it was."""
        return {
            index: failed_at
            for index, failed_at in enumerate(self._failed_at)
            if failed_at > began and not self.by_node[index] and self._nodes[index].error
        }

    def _untried(self, began: float, given_up: Mapping[int, float]) -> list[Node]:
        """Return the nodes to try yet: of the missing ones, those that have not failed since."""
        return [
            node
            for index, node in enumerate(self._nodes)
            if self._is_idle(index)
            and (
                node.error is None or node.tried_at < began or node.tried_at == given_up.get(index)
            )
        ]

    def _due(self, now: float, before: float) -> list[Node]:
        """Return the missing nodes that may be tried, and whose last attempt began before a time.

        There is no pause after the first failure.
        """
        return [
            node
            for index, node in enumerate(self._nodes)
            if self._is_idle(index)
            and node.attempt_began_at < before
            and node.retry_short_at <= now
        ]

    def _pause(self, untried: list[Node], now: float) -> float:
        """Return how long to wait for the pauses of nodes, or for attempts of other channels."""
        soonest = min(node.retry_short_at for node in untried) - now
        return min(max(soonest, 0.001), _LOOK_S)

    def connect_all(self) -> None:
        """Wait until every node has been tried."""
        self.adopt()
        for index in range(len(self._nodes)):
            if self._is_idle(index):
                self._start_connecting(index)
        deadline = self._clock.now() + self.patience
        while self._connecting and (left := deadline - self._clock.now()) > 0:
            self.adopt(left)

    def try_spares(self, began: float, *, needs_votes: bool) -> bool:
        """Try spares for connections that have not answered in time, if a quorum needs them.

        A firewall may have forgotten them. Or their servers hang, so that they stay until there is
        a spare, which takes its place when it is adopted. Missing nodes are connected to as well.

        Args:
            began: Time at which the caller began to wait for spares, seconds on the clock.
            needs_votes: Whether a node inside its restart guard is none of a quorum.

        Returns:
            Whether to wait for one, and to ask again: the old ones may answer as well.
        """
        now = self._clock.now()
        silent = {
            index: one
            for index, one in enumerate(self.by_node)
            # Half of it: the reply to an earlier request may have come meanwhile.
            if one and one.sent > one.received and one.owed_since + self._node_timeout / 2 <= began
        }
        if not silent:
            return False
        if not self._is_short(now, needs_votes=needs_votes, besides=silent):
            # The rest of those that are tried may come as quickly.
            is_rest = not self._connecting.isdisjoint(silent)
            return is_rest and now < began + self._node_timeout
        # A missing one that is well may be the first to make the quorum.
        self._start_due(now, is_short=True)
        for index, one in silent.items():
            if index not in self._connecting and self._nodes[index].spares.begins(one):
                self._start_connecting(index)
        # Of this channel, or of another one: then this one may try its own after that.
        last = max(self._nodes[index].spares.began_at for index in silent)
        is_any_missing = not self._connecting.issubset(silent)
        waits_since = began if is_any_missing else min(began, last)
        return now < waits_since + max(self._node_timeout, _HANGS_S)

    def _start_connecting(self, index: int) -> None:
        self._connecting.add(index)
        is_spare = self.by_node[index] is not None
        if not is_spare:
            self._nodes[index].attempt_begins(self._clock.now())
        name, arrivals = f"redlock-connect-{self._nodes[index].name}", self._arrivals
        try:
            dispatch.start_beside(lambda: self._connect(index, arrivals, is_spare=is_spare), name)
        except RuntimeError as error:
            # The existing connections may be enough.
            self._connecting.discard(index)
            if is_spare:
                self._nodes[index].spares.ends(is_made=False, is_quick=False)
            else:
                self._nodes[index].failed(f"no thread can be started to connect: {error}")

    def _connect(self, index: int, arrivals: _Arrivals, *, is_spare: bool) -> None:
        connection, began = None, 0.0
        try:
            began = self._clock.now()  # a user's, which may raise
            connection = self._nodes[index].connect(is_spare=is_spare)
        except (ConnectionError, ConfigurationError):
            pass  # The node keeps it in `error` and reports it to the observers.
        except Exception as error:  # noqa: BLE001  # it is logged
            name = self._nodes[index].name
            callbacks.tell(
                logger.error, "connecting failed unexpectedly node=%s", name, exc_info=error
            )
            if not is_spare:
                self._nodes[index].failed(f"unexpectedly, {error!r}")
        finally:
            # This has to be done always: the node is not connected to again before that.
            arrivals.put((index, connection))
            if arrivals is not self._arrivals:  # closed meanwhile: nobody adopts it
                _disconnect(_taken_from(arrivals))
            if is_spare:
                is_made = connection is not None
                is_quick = is_made and self._clock.now() - began <= self._node_timeout
                self._nodes[index].spares.ends(is_made=is_made, is_quick=is_quick)

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
                if before := self.by_node[index]:
                    before.fail("it has not answered, and its node was connected to again")
                    self.drop(index)
                self._drop_another_to(connection.run_id)
                connection.greeted = connection.received
                self.by_node[index] = connection
                self.adopted += 1
                self.index_of[connection.fd] = index
                self.poller.register(connection.fd, writing=False)

    def _drop_another_to(self, run_id: str | None) -> None:
        """Drop the connection to a server that has moved to another node's address."""
        for index, connection in enumerate(self.by_node):
            if connection and run_id and connection.run_id == run_id:
                connection.fail("its server has another node's address now")
                self.drop(index)

    def drop_stale(self, now: float) -> None:
        """Drop connections that broke, lead to another server by now, or have owed for too long."""
        for index, connection in enumerate(self.by_node):
            if not connection:
                continue
            if connection.sent > connection.received and now - connection.owed_since > GIVE_UP_S:
                connection.fail(f"it has not answered for {GIVE_UP_S:.0f} s", blames_node=True)
            elif connection.run_id != self._nodes[index].run_id:
                connection.fail("another server has its address now")
            elif connection.history != self._nodes[index].history:
                connection.fail("it was a replica meanwhile")
            if connection.closed:
                self.drop(index)
        self._drop_guarded(now)

    def _drop_guarded(self, now: float) -> None:
        """While no quorum votes, drop guarded nodes: an operator may have admitted them since."""
        if not self._is_short(now):
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
            # An attempt to connect again may fail before anybody asks when it was given up.
            self._failed_at[index] = self._nodes[index].tried_at
            self.dropped += 1
            # Before the descriptor is closed: its number is the next connection's.
            del self.index_of[connection.fd]
            self.poller.unregister(connection.fd)
            connection.disconnect()

    def close(self) -> None:
        """Close every connection, in whatever state an interrupt has left them.

        New connections may be made afterwards.
        """
        arrivals, self._arrivals = self._arrivals, queue.SimpleQueue()
        connections, self.by_node = self.by_node, [None] * len(self._nodes)
        self._connecting = set()
        self.index_of, self.poller = {}, new_poller()
        _disconnect([*connections, *_taken_from(arrivals)])


def _taken_from(arrivals: _Arrivals) -> Iterator[NodeConnection | None]:
    """Take the connections that have arrived; None: an attempt that failed."""
    with contextlib.suppress(queue.Empty):
        while True:
            yield arrivals.get(block=False)[1]


def _disconnect(connections: Iterable[NodeConnection | None]) -> None:
    for connection in connections:
        if connection:
            with contextlib.suppress(Exception):
                connection.disconnect()
