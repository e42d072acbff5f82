"""Handshake on a new connection: load the scripts, check the identity of the server."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.protocol.scripts import ALL

from .connection import LOAD_SCRIPTS, ErrorReply, NodeConnection, pack
from .poller import new_poller

_SLOTS = 16384
_LONGEST_ERROR = 200
_WHICH = pack(("INFO", "server"))
_QUESTIONS = _WHICH + pack(("INFO", "replication")) + LOAD_SCRIPTS
_QUESTION_COUNT = 2 + len(ALL)
_PLACE_IN_CLUSTER = pack(("CLUSTER", "MYID")) + pack(("CLUSTER", "SLOTS"))
_IDENTITY = {"role", "run_id", "uptime_in_seconds"}
"""Fields that INFO must have."""


class Server(NamedTuple):
    """Identity of the server at the end of a connection.

    Attributes:
        run_id: Run id, which changes with each start.
        uptime: Seconds since its start, as INFO has it.
        answered_at: Time after its reply, seconds on the clock.
        admitted: Run id of the server that an operator has declared new, for this lock; '': none.
        history: Replication id, which changes when a replica becomes a master; '': unknown.
    """

    run_id: str
    uptime: str
    answered_at: float
    admitted: str = ""
    history: str = ""


class Handshake:
    """Handshake on each new connection to one node.

    Args:
        name: The node's name.
        clock: Time.
        timeout: Longest wait for an answer, seconds.
        admission: Note that may admit the server; None: it is not read.
    """

    def __init__(
        self, name: str, clock: Clock, timeout: float, admission: Admission | None = None
    ) -> None:
        self._name = name
        self._clock = clock
        self._timeout = timeout
        self._admission = admission
        # In one write, since a busy interpreter may delay each further step.
        self._payload = _QUESTIONS + (pack(admission.reading) if admission else b"")

    def identify(self, connection: NodeConnection) -> Server:
        """Load the scripts; return the identity of the server.

        Raises:
            ConfigurationError: The server is not an independent master.
            ConnectionError: The server did not answer, or answered with an error.
        """
        count = _QUESTION_COUNT + (self._admission is not None)
        raws = self._exchange(connection, self._payload, count)
        # After the reply, which may have been delayed: its uptime is older than that.
        answered_at = self._clock.now()
        # Before the errors: it does not know the other commands.
        modes = self._modes(raws[0])
        server, replication, *_ = _without_errors(raws[:_QUESTION_COUNT])
        info = _info(server) | _info(replication)
        if lacking := _IDENTITY - info.keys():
            raise ConnectionError(f"its INFO lacks {' and '.join(sorted(lacking))}")
        if info["role"] != "master":
            raise ConfigurationError(
                f"node {self._name} is a {info['role'][:20]}: a lock granted by a replica is lost "
                "in a failover; name independent masters only"
            )
        if "cluster" in modes:
            self._check_cluster(connection)
        admitted = self._admission.run_id_in(raws[-1]) if self._admission else ""
        return Server(
            info["run_id"], info["uptime_in_seconds"], answered_at, admitted,
            info.get("master_replid", ""),
        )  # fmt: skip

    def refuse_sentinel(self, connection: NodeConnection) -> None:
        """Ask a server that refuses the login what it is.

        Raises:
            ConfigurationError: It is a Sentinel.
            ConnectionError: As in `identify`.
        """
        self._modes(*_without_errors(self._exchange(connection, _WHICH, 1)))

    def _modes(self, raw: object) -> set[str | None]:
        """Return the modes that a reply to INFO names.

        Raises:
            ConfigurationError: It is that of a Sentinel.
        """
        info = _info(raw)
        # Valkey 9.1 calls it server_mode.
        modes = {info.get("redis_mode"), info.get("server_mode")}
        if "sentinel" in modes:
            raise ConfigurationError(
                f"node {self._name} is a Sentinel, which holds no locks: name independent masters "
                "themselves, without replicas"
            )
        return modes

    def _exchange(self, connection: NodeConnection, payload: bytes, count: int) -> list[object]:
        """Return the server's replies to `count` packed commands, of which some may be errors.

        Raises:
            ConnectionError: A reply did not come in time, or the server closed the connection.
        """
        now = self._clock.now()
        deadline = now + self._timeout
        connection.send(payload, count, now)
        raws: list[object] = []
        poller = new_poller()
        while len(raws) < count and not connection.closed:
            poller.register(connection.fd, writing=connection.is_blocked)
            if now >= deadline or not poller.wait(deadline - now):
                raise ConnectionError(f"Timeout: it did not answer within {self._timeout:g} s")
            connection.flush()
            now = self._clock.now()
            raws += connection.receive(now)
        connection.refuse_surplus()
        if connection.closed:
            # A server that is full, or protected, says so first, be it before it was asked: then a
            # local one has hung up, and the questions could not be written.
            _without_errors(raws or connection.receive(now))
            raise ConnectionError(connection.closed)
        return raws

    def _check_cluster(self, connection: NodeConnection) -> None:
        myself, slots = _without_errors(self._exchange(connection, _PLACE_IN_CLUSTER, 2))
        mine = sum(
            last - first + 1
            for first, last, (_host, _port, node_id, *_), *_ in cast(Any, slots)
            if node_id == myself
        )
        if mine < _SLOTS:
            raise ConfigurationError(
                f"node {self._name} is in cluster mode and serves {mine} of {_SLOTS} slots: it "
                "would refuse the other keys; name independent masters outside a cluster"
            )


def _without_errors(raws: list[object]) -> list[object]:
    for raw in raws:
        if isinstance(raw, ErrorReply):
            raise ConnectionError(str(raw)[:_LONGEST_ERROR])
    return raws


def _info(raw: object) -> dict[str, str]:
    """Return the fields in a reply to INFO; an error has none."""
    lines = raw.decode(errors="replace").splitlines() if isinstance(raw, bytes) else ()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}
