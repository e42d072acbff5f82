"""Node: one server, whether it is up, its identity, and when it votes."""

from __future__ import annotations

import math
import os
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
from .spares import Spares

_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_BACKOFF_SHORT_S = 0.5
"""Longest pause for channels without a quorum: so late at most is a recovery noticed."""
_NO_PAUSE = (0.0, 0.0)
_MOST_RUN_IDS = 16
_REFUSAL_S = 60.0
"""A refusal or a protocol violation this long after the previous one counts as the first."""


_UNFIT = "unfit"
"""History of a node that was found to be no independent master: no connection has it."""
_accepted: set[str] = set()
"""Names of the nodes that this process, or one that it was forked from, has accepted."""
_inherited: set[str] = set()
"""Those of them that it had when it was forked."""


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

    Attributes:
        retry_at: Time of the next attempt to connect while a quorum is connected, seconds on the
            clock.
        retry_short_at: The same for channels that lack a quorum. All threads share it: one attempt
            for each pause of the back-off.
        attempt_began_at: Time at which the last attempt began, seconds on the clock.
        tried_at: Time of the last failure, seconds on the clock.
        spares: When to try spares for connections that do not answer.
        run_id: Run id of its server, as last seen.
        run_ids: Run ids of the last servers that were accepted, the newest last.
        database: Number of the database.
        history: Replication id of its server. A connection with another one is useless: the server
            was a replica meanwhile, and has lost its locks.

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
        self.run_ids: tuple[str, ...] = ()
        self.history = ""
        self.error: str | None = None
        self.misconfigured: ConfigurationError | None = None
        self.peers: tuple[Node, ...] = ()
        self.retry_at, self.retry_short_at = self._pauses = _NO_PAUSE
        self.attempt_began_at = self.tried_at = -math.inf
        self.spares = Spares(clock)
        self._connector = redis_py.Connector(url, self.name, connect_timeout)
        self.database = self._connector.database
        # Without a guard there is nothing to shorten.
        note = admission if guard_s else None
        self._handshake = Handshake(self.name, clock, self._connector.timeout, note)
        self._guard = RestartGuard(self.name, clock, guard_s, admitted_s)
        self._failures = 0
        self._refused_at = self._blamed_at = -math.inf
        self._announced: str | None = None
        self._is_unfit, self._was_accepted = False, self.name in _inherited

    def __repr__(self) -> str:
        return f"Node({self.name!r}, run_id={self.run_id!r}, error={self.error!r})"

    def connect(self, *, is_spare: bool = False) -> NodeConnection:
        """Return a new connection, with scripts loaded and the server's identity checked.

        Args:
            is_spare: Whether there is another one, which does not answer. If this one can't be
                made, that does not mean that the node is down.

        Raises:
            ConfigurationError: The server is not an independent master.
            ConnectionError: The server is down or does not answer; with the reason.
        """
        redis_connection = self._connector.new_connection()
        try:
            self._log_in(redis_connection.connect)
            connection = NodeConnection(redis_connection, math.inf, self._ended)
            server = self._identify(connection)
            connection.votes_from = self._accept(server)
            connection.run_id, connection.identified_at = server.run_id, server.answered_at
            connection.history = self.history = server.history
        except redis_py.ERRORS as error:
            redis_connection.disconnect()
            why = self._connector.without_secrets(error)
            if not is_spare:
                self.failed(why)
            # What the server said may hold the password, so the error is not chained.
            raise ConnectionError(why) from None
        except ConfigurationError as error:
            redis_connection.disconnect()
            # Later it is a node that is down, as long as a quorum is left.
            if not self._was_accepted:
                self.misconfigured = error
            self.failed(str(error), is_unfit=True)
            raise
        self._was_accepted, self._is_unfit = True, False
        _accepted.add(self.name)
        for peer in self.peers:
            if peer.misconfigured is self.misconfigured:
                peer.misconfigured = None
        self.misconfigured = None
        if self.clock.now() - self._blamed_at > _REFUSAL_S:
            self._failures = 0
        self.forget_attempts()
        if self.error is not None or self._announced != self.run_id:
            self.error, self._announced = None, self.run_id
            self.observe(NodeUp(self.name, max(0.0, connection.votes_from - self.clock.now())))
        return connection

    def _log_in(self, connect: Callable[[], None]) -> None:
        """Connect, log in and select the database.

        Raises:
            ConfigurationError: The server refuses that, since it is a Sentinel.
        """
        try:
            connect()
        except redis_py.ERRORS as error:
            # redis-py has closed what a local server that is full has said before it hung up.
            is_unread = isinstance(error.__context__, BrokenPipeError)
            if not (is_unread or isinstance(error, redis_py.REFUSALS)):
                raise
            # A Sentinel has no database, and mostly no password.
            plain = self._connector.new_connection(asks_for_nothing=True)
            try:
                plain.connect()
                connection = NodeConnection(plain, math.inf, lambda *_, **__: None)
                self._handshake.refuse_sentinel(connection)
            except redis_py.ERRORS as said:
                # By now it may let somebody in, who has not logged in here.
                if is_unread and not str(said).startswith("NOAUTH"):
                    raise said from None
                # Else it does not tell what it is, either.
            finally:
                plain.disconnect()
            raise

    def _identify(self, connection: NodeConnection) -> Server:
        try:
            return self._handshake.identify(connection)
        except ConfigurationError:
            # If it was a master before, it has lost its locks: all connections are useless.
            self.history = _UNFIT
            raise

    def attempt_begins(self, now: float) -> None:
        """Keep other channels from connecting at the same time to a node that may be down."""
        self.attempt_began_at = now
        if self.error is not None:
            self.retry_at = self.retry_short_at = now + _BACKOFF_MAX_S

    def failed(self, error: str, *, is_unfit: bool = False) -> None:
        """Note that the node is down; the next attempt waits, longer each time.

        Of several channels that note it during one pause, only the first lengthens the next one.

        Args:
            error: The reason.
            is_unfit: Whether its server can't be a node, and only an operator can mend that.
        """
        if self.error is None or (is_unfit and not self._is_unfit):
            self.observe(NodeDown(self.name, error, is_unfit))
        self.error, self._is_unfit = error, self._is_unfit or is_unfit
        now = self.tried_at = self.clock.now()
        if now >= self._pauses[1]:
            longest = min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** max(0, self._failures - 1))
            delay = longest * random.uniform(0.5, 1.0)
            # What broke all other connections may have broken this first attempt, too.
            short = min(delay, _BACKOFF_SHORT_S) if self._failures else 0.0
            self._failures = min(self._failures + 1, 16)
            self._pauses = now + delay, now + short
        self.retry_at, self.retry_short_at = self._pauses

    def forget_attempts(self) -> None:
        """In a child: forget attempts that are under way, which are the parent's, and pauses."""
        self._pauses = _NO_PAUSE
        self.retry_at, self.retry_short_at = _NO_PAUSE
        self.spares.forget()

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
        votes_from, before = self._guard.votes_from(server), self.run_id
        # It is set before it is compared: of two nodes found to be one server at the same time,
        # at least one is refused.
        self.run_id = server.run_id
        for peer in self.peers:
            if peer is not self and peer.run_id == self.run_id:
                error = ConfigurationError(
                    f"nodes {peer.name} and {self.name} are the same server (run_id "
                    f"{peer.run_id}): it would vote twice; name each server once"
                )
                if self._was_accepted:
                    # Its address leads there by now. Its peer votes on.
                    self.run_id = before
                else:
                    # Both nodes are named wrongly, and refused from now on, in every channel.
                    peer.misconfigured = error
                raise error
        if server.run_id not in self.run_ids:
            self.run_ids = (*self.run_ids, server.run_id)[-_MOST_RUN_IDS:]
        return votes_from


def _inherit() -> None:
    _inherited.update(_accepted)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit)
