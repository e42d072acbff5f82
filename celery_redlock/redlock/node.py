"""One server: how it is reached, who it is, whether it may vote. The only import of redis-py.

redis-py makes the connection (URL, TLS, ACL, unix sockets) and is then out of the way: the channel
writes to the socket and reads replies through hiredis, so that one poll covers every node.
"""

from __future__ import annotations

# Connecting imports it. A child that is forked while another thread does so would wait for that
# thread, which it has not got, whenever it connects.
import encodings.idna  # noqa: F401
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any, cast
from urllib.parse import urlsplit

import hiredis
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from .clock import Clock
from .errors import ConfigurationError
from .events import Event, NodeDown, NodeUp
from .scripts import ALL, Argument

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
_OUTBOX_LIMIT = 1 << 20
_READ_SIZE = 1 << 16
_SLOTS = 16384
_NOTHING = object()
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


# The stub of hiredis names a tuple of one, and no type for what comes back.
pack = cast(Callable[[tuple[Argument, ...]], bytes], hiredis.pack_command)
"""Return a command in the servers' wire format."""


def is_error(raw: object, prefix: str) -> bool:
    """Tell whether a raw reply is an error of the kind that starts with `prefix`."""
    return isinstance(raw, hiredis.ReplyError) and str(raw).startswith(prefix)


_LOAD_SCRIPTS = b"".join(pack(("SCRIPT", "LOAD", script.text)) for script in ALL)


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
        return Link(self, connection, votes_from)

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

    def broke(self) -> None:
        """Note that a connection ended: it is made anew soon, and then shows if the node is down.

        Others to the same server may have ended with it, and be noticed at any time later.
        """
        if self.error is None:
            self.retry_at = self.clock.now() + _BACKOFF_S * random.uniform(0.5, 1.0)

    def _identify(self, connection: AbstractConnection) -> float:
        """Check who the server is, load the scripts; return when it may vote (clock seconds)."""
        asked_at = self.clock.now()
        # In one write: each step more is one that a busy interpreter may delay.
        questions = [("INFO", "server"), ("INFO", "replication")]
        loading = [("SCRIPT", "LOAD", script.text) for script in ALL]
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


class Link:
    """One connection to one node. Not for two threads at once.

    Replies come in the order of the requests, so a reply's number tells what it answers: of `sent`
    requests, the replies of the last ``sent - received`` are still owed. `is_blocked` says that
    bytes wait here because the socket would not take them.
    """

    __slots__ = (
        "_connection", "_is_tls", "_outbox", "_reader", "_reloaded", "_socket",
        "closed", "fd", "is_blocked", "node", "owed_since", "received", "sent", "votes_from",
    )  # fmt: skip

    def __init__(self, node: Node, connection: AbstractConnection, votes_from: float) -> None:
        self.node = node
        self.votes_from = votes_from
        self._connection = connection
        # redis-py has no public way to the socket; this attribute is the same from 6.4 to 8.
        self._socket = cast(socket.socket, cast(Any, connection)._sock)  # noqa: SLF001
        self._socket.settimeout(0)
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._is_tls = isinstance(self._socket, ssl.SSLSocket)
        self._outbox = bytearray()
        self._reloaded = 0
        self.is_blocked = False
        self.fd = self._socket.fileno()
        self.sent = 0
        self.received = 0
        self.owed_since = 0.0
        self.closed: str | None = None

    def send(self, payload: bytes, requests: int, now: float) -> None:
        """Write `payload`, without ever blocking; what the socket does not take is kept."""
        if self.sent == self.received:
            self.owed_since = now
        self.sent += requests
        if self.is_blocked:
            self._outbox += payload
            self.flush()
            return
        try:
            taken = self._socket.send(payload)
        except _WOULD_BLOCK:
            taken = 0
        except OSError as error:
            self.fail(str(error))
            return
        if taken < len(payload):
            self._outbox += payload[taken:]
            self.is_blocked = True

    def flush(self) -> None:
        """Write what is left over, as far as the socket takes it."""
        try:
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]
            self.is_blocked = False
        except _WOULD_BLOCK:
            if len(self._outbox) > _OUTBOX_LIMIT:
                self.fail("it reads nothing any more", blames_node=True)
        except OSError as error:
            self.fail(str(error))

    def receive(self, now: float) -> list[object]:
        """Return the replies that are there, in order; never block."""
        raws: list[object] = []
        while True:
            try:
                data = self._socket.recv(_READ_SIZE)
            except _WOULD_BLOCK:
                break
            except OSError as error:
                self.fail(str(error))
                break
            if not data:
                self.fail("the server closed the connection")
                break
            try:
                self._reader.feed(data)
                while (raw := self._reader.gets()) is not _NOTHING:
                    if not isinstance(raw, hiredis.PushNotification):
                        raws.append(raw)
            except hiredis.ProtocolError as error:
                self.fail(f"no Redis reply: {error}")
                break
            # A plain socket that gave less than was asked for is empty; a TLS socket may hold
            # more than the poll can see.
            if len(data) < _READ_SIZE and not self._is_tls:
                break
        if raws:
            self.received += len(raws)
            self.owed_since = now
        return raws

    def reload_scripts(self, number: int, now: float) -> None:
        """Load the scripts again, after reply `number` said that the server has forgotten them."""
        if number >= self._reloaded:
            self._reloaded = self.sent
            self.send(_LOAD_SCRIPTS, len(ALL), now)

    def disown(self) -> None:
        """Close this process's copy of the descriptor, without a word to the server."""
        self._socket.close()

    def fail(self, why: str, *, blames_node: bool = False) -> None:
        """Note that the connection is of no use any more; its channel then drops it."""
        if not self.closed:
            self.closed = why
            if blames_node:
                self.node.failed(why)
            else:
                self.node.broke()

    def disconnect(self) -> None:
        """Close the connection. What was written before still reaches the server."""
        self._connection.disconnect()


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
