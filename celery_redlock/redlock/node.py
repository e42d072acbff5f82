"""One server: how it is reached, who it is, whether it may vote. The only import of redis-py.

redis-py makes the connection (URL, TLS, ACL, unix sockets) and is then out of the way: the channel
writes to the socket and reads replies through hiredis, so that one poll covers every node.
"""

from __future__ import annotations

# Connecting imports it. A child that is forked while another thread does so would wait for that
# thread, which it has not got, whenever it connects.
import encodings.idna  # noqa: F401
import random
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from .clock import Clock
from .errors import ConfigurationError
from .events import Event, NodeDown, NodeUp
from .link import Link
from .scripts import ALL

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_SLOTS = 16384


class Node:
    """One of the N servers, shared by every connection that this process has to it.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``valkey://`` or ``valkeys://``.
        clock: Time for back-off and the guard.
        connect_timeout: Longest a connection attempt and each step of its handshake may take, s.
        guard_s: Seconds after the server's start during which it does not vote; 0.0 for none.
        observe: Called with NodeUp and NodeDown when the node's state changes.

    Raises:
        ConfigurationError: The URL can't be used.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        connect_timeout: float,
        guard_s: float,
        observe: Callable[[Event], None],
    ) -> None:
        self.clock = clock
        self.observe = observe
        self.guard_s = guard_s
        self.name = _address(url)
        self.run_id: str | None = None
        self.version = ""
        self.error: str | None = None
        self.misconfigured: ConfigurationError | None = None
        self.peers: tuple[Node, ...] = ()
        self.retry_at = 0.0
        self._failures = 0
        self._announced: str | None = None
        self._was_accepted = False
        self._connection_class, self._options = _connection_options(url, self.name)
        self._options.setdefault("socket_timeout", connect_timeout)
        self._options.setdefault("socket_connect_timeout", connect_timeout)

    def __repr__(self) -> str:
        return f"Node({self.name!r}, run_id={self.run_id!r}, error={self.error!r})"

    def connect(self) -> Link:
        """Return a new connection, its scripts loaded and its server's identity checked.

        Raises:
            ConfigurationError: The server is not an independent master.
            ConnectionError: It can't be reached, or does not answer; `error` says why.
        """
        # A library's own retry could send a grant twice, which breaks the token.
        connection = self._connection_class(**self._options, retry=Retry(NoBackoff(), 0))
        try:
            connection.connect()
            votes_from = self._identify(connection)
        except (RedisError, OSError) as error:
            connection.disconnect()
            self.failed(str(error))
            raise ConnectionError(self.error) from error
        except ConfigurationError as error:
            connection.disconnect()
            if not self._was_accepted:
                self.misconfigured = error
            self.failed(str(error))
            raise
        self._was_accepted = True
        self.misconfigured = None
        self._failures = 0
        self.retry_at = 0.0
        if self.error is not None or self._announced != self.run_id:
            self.error, self._announced = None, self.run_id
            self.observe(NodeUp(self.name, max(0.0, votes_from - self.clock.now())))
        return Link(connection, votes_from, self._ended)

    def attempt_begins(self, now: float) -> None:
        """Keep other channels from trying at the same time, when the node is not known to be up."""
        if self.error is not None:
            self.retry_at = now + _BACKOFF_MAX_S

    def failed(self, error: str) -> None:
        """Note that the node can't be used; the next attempt waits, longer each time."""
        if self.error is None:
            self.observe(NodeDown(self.name, error))
        self.error = error
        delay = min(_BACKOFF_MAX_S, _BACKOFF_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        self.retry_at = self.clock.now() + delay * random.uniform(0.5, 1.0)

    def _ended(self, why: str, *, blames_node: bool) -> None:
        """Note that a connection ended: it is made anew soon, and then shows if the node is down.

        Others to the same server may have ended with it, and be noticed at any time later.
        """
        if blames_node:
            self.failed(why)
        elif self.error is None:
            self.retry_at = self.clock.now() + _BACKOFF_S * random.uniform(0.5, 1.0)

    def _identify(self, connection: AbstractConnection) -> float:
        """Check who the server is, load the scripts; return when it may vote (clock seconds)."""
        asked_at = self.clock.now()
        # In one write: each step more is one that a busy interpreter may delay.
        questions = [("INFO", "server"), ("INFO", "replication")]
        loading = [script.loading for script in ALL]
        connection.send_packed_command(connection.pack_commands([*questions, *loading]))
        info = dict(_info(connection.read_response())) | dict(_info(connection.read_response()))
        for _ in loading:
            connection.read_response()
        if info.get("role") != "master":
            raise ConfigurationError(
                f"node {self.name} is a {info.get('role')}: a lock granted by a replica is lost "
                "in a failover; name independent masters only"
            )
        if info.get("redis_mode") == "cluster":
            self._check_cluster(connection)
        # Said before it is compared, and not taken back when it is refused: of two that lead to one
        # server, whoever says so second is refused, and from then on both, in every channel.
        self.run_id = info["run_id"]
        for peer in self.peers:
            if peer is not self and peer.run_id == self.run_id:
                raise ConfigurationError(
                    f"nodes {peer.name} and {self.name} are the same server (run_id "
                    f"{peer.run_id}): it would vote twice; name each server once"
                )
        self.version = info.get("redis_version", "")
        # Below zero where the wall clock was set back since the start.
        uptime = max(0.0, float(info["uptime_in_seconds"]))
        return asked_at + max(0.0, self.guard_s - uptime)

    def _check_cluster(self, connection: AbstractConnection) -> None:
        connection.send_command("CLUSTER", "MYID")
        myself = connection.read_response()
        connection.send_command("CLUSTER", "SLOTS")
        mine = sum(
            last - first + 1
            for first, last, (_host, _port, node_id, *_), *_ in connection.read_response()
            if node_id == myself
        )
        if mine < _SLOTS:
            raise ConfigurationError(
                f"node {self.name} is in cluster mode and serves {mine} of {_SLOTS} slots: it "
                "would refuse the other keys; name independent masters outside a cluster"
            )


def _info(raw: object) -> Iterator[tuple[str, str]]:
    text = raw.decode() if isinstance(raw, bytes) else str(raw)
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value


def _address(url: str) -> str:
    """Return where `url` points to, without what must not be logged."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return f"unix:{parts.path}"
        return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        # What the parser takes for a bad port may be a password, so its error is not passed on.
        raise ConfigurationError(
            "a node's URL can't be read (it may hold a password, so it is not shown): write "
            "redis://user:password@host:6379/0, with / ? # @ : in a password as %2F %3F %23 %40 %3A"
        ) from None


def _connection_options(
    url: str, name: str
) -> tuple[Callable[..., AbstractConnection], dict[str, Any]]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigurationError(
            f"node {name}: the scheme {scheme if separator else ''!r} can't be used; "
            f"write one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    try:
        options = dict(parse_url(scheme.replace("valkey", "redis") + separator + rest))
    except ValueError as error:
        raise ConfigurationError(f"node {name}: {error}") from error
    options.setdefault("protocol", 2)
    # Not to be introduced by name saves two round trips. redis-py 8 renamed the option.
    if "driver_info" in signature(AbstractConnection.__init__).parameters:
        options["driver_info"] = None
    else:
        options["lib_name"] = options["lib_version"] = None
    # Options of redis-py's pool, which is not used here.
    for unused in ("max_connections", "timeout", "retry_on_timeout", "decode_responses"):
        options.pop(unused, None)
    connection_class = options.pop("connection_class", Connection)
    try:
        connection_class(**options)
    except TypeError as error:
        raise ConfigurationError(
            f"node {name}: an option of its URL is unknown: {error}"
        ) from error
    return connection_class, options
