"""Node: one server, whether it is up, its identity, and when it votes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import Event, NodeDown, NodeRefuses, NodeUp
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.validation import address_of

from . import redis_py
from .connection import NodeConnection
from .handshake import Handshake, Server
from .restart_guard import RestartGuard

_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_REFUSAL_S = 60.0
"""A refusal or a protocol violation this long after the previous one counts as the first."""


class Node:
    """One of the N servers, shared by all connections of this process to it.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``valkey://`` or ``valkeys://``.
        clock: Time for back-off and the guard.
        connect_timeout: Longest time for a connection attempt and for each step of it, seconds.
        guard_s: Time after the server's start during which it does not vote, seconds; 0.0: none.
        observe: Called with NodeUp, NodeDown and NodeRefuses when the node's state changes.
        admitted_s: The same for a server that an operator has declared new, seconds.
        admission: Note that may admit the server; None: it is not read.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        connect_timeout: float,
        guard_s: float,
        observe: Callable[[Event], None],
        admitted_s: float = 0.0,
        admission: Admission | None = None,
    ) -> None:
        self.clock = clock
        self.observe = observe
        self.name = address_of(url)
        self.run_id: str | None = None
        self.error: str | None = None
        self.misconfigured: ConfigurationError | None = None
        self.peers: tuple[Node, ...] = ()
        self.retry_at = 0.0
        self._connector = redis_py.Connector(url, self.name, connect_timeout)
        # Without a guard there is nothing to shorten.
        note = admission if guard_s else None
        self._handshake = Handshake(self.name, clock, self._connector.timeout, note)
        self._guard = RestartGuard(self.name, clock, guard_s, admitted_s)
        self._failures = 0
        self._refused_at = self._blamed_at = -math.inf
        self._announced: str | None = None
        self._was_accepted = False

    def __repr__(self) -> str:
        return f"Node({self.name!r}, run_id={self.run_id!r}, error={self.error!r})"

    def connect(self) -> NodeConnection:
        """Return a new connection, with scripts loaded and the server's identity checked.

        Raises:
            ConfigurationError: The server is not an independent master.
            ConnectionError: The server is down or does not answer; `error` has the reason.
        """
        redis_connection = self._connector.new_connection()
        try:
            redis_connection.connect()
            connection = NodeConnection(redis_connection, math.inf, self._ended)
            server = self._handshake.identify(connection)
            connection.votes_from = self._accept(server)
            connection.run_id, connection.identified_at = self.run_id, server.answered_at
        except redis_py.ERRORS as error:
            redis_connection.disconnect()
            self.failed(self._connector.without_secrets(error))
            # Not chained: what the server said may hold the password.
            raise ConnectionError(self.error) from None
        except ConfigurationError as error:
            redis_connection.disconnect()
            if not self._was_accepted:
                self.misconfigured = error
            self.failed(str(error))
            raise
        self._was_accepted = True
        self.misconfigured = None
        if self.clock.now() - self._blamed_at > _REFUSAL_S:
            self._failures = 0
        self.retry_at = 0.0
        if self.error is not None or self._announced != self.run_id:
            self.error, self._announced = None, self.run_id
            self.observe(NodeUp(self.name, max(0.0, connection.votes_from - self.clock.now())))
        return connection

    def attempt_begins(self, now: float) -> None:
        """Keep other channels from connecting at the same time to a node that may be down."""
        if self.error is not None:
            self.retry_at = now + _BACKOFF_MAX_S

    def failed(self, error: str) -> None:
        """Note that the node is down; the next attempt waits, longer each time."""
        if self.error is None:
            self.observe(NodeDown(self.name, error))
        self.error = error
        delay = min(_BACKOFF_MAX_S, _BACKOFF_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self.retry_at = self.clock.now() + delay * random.uniform(0.5, 1.0)

    def refuses(self, error: str) -> None:
        """Note that the node refuses to write; observers hear of it once a minute at most."""
        now = self.clock.now()
        is_known, self._refused_at = now - self._refused_at <= _REFUSAL_S, now
        if not is_known:
            self.observe(NodeRefuses(self.name, error))

    def writes(self, votes_in: float) -> None:
        """Note that the node writes again, and votes in `votes_in` seconds."""
        if self._refused_at > -math.inf:
            self._refused_at = -math.inf
            self.observe(NodeUp(self.name, votes_in))

    def _ended(self, why: str, *, blames_node: bool) -> None:
        """Note the end of a connection: the next attempt, soon, shows whether the node is down.

        Other connections to the same server may have ended with it, and be noticed later.
        """
        if blames_node:
            # It may connect and violate the protocol each time: retry less and less often.
            self._blamed_at = self.clock.now()
            self.failed(why)
        elif self.error is None:
            self.retry_at = self.clock.now() + _BACKOFF_S * random.uniform(0.5, 1.0)

    def _accept(self, server: Server) -> float:
        """Return when `server` may vote, seconds on the clock; refuse the server of a peer."""
        votes_from = self._guard.votes_from(server)
        # Set before it is compared, and kept if it is refused: of two nodes with one server, the
        # second is refused, and from then on both, in every channel.
        self.run_id = server.run_id
        for peer in self.peers:
            if peer is not self and peer.run_id == self.run_id:
                raise ConfigurationError(
                    f"nodes {peer.name} and {self.name} are the same server (run_id "
                    f"{peer.run_id}): it would vote twice; name each server once"
                )
        return votes_from
