"""Connecting to a server through redis-py. The only import of redis-py.

redis-py makes the connection (URL, TLS, ACL, unix sockets) and is then out of the way: the channel
writes to the socket and reads replies through hiredis, so that one poll covers every node.
"""

from __future__ import annotations

# Connecting imports it. A child that is forked during that import by another thread would wait for
# that thread, which it does not have, at each connection.
import encodings.idna  # noqa: F401
import os
import re
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any
from urllib.parse import parse_qs, urlsplit
from weakref import WeakSet

from redis.backoff import NoBackoff
from redis.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.retry import Retry

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.validation import LONGEST_S, check_seconds

from .connection import socket_of

SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
ERRORS = (RedisError, OSError, ValueError, TypeError)
"""Errors that connecting may raise."""
REFUSALS = (ResponseError, AuthenticationError)
"""Those of a server that has answered: it refuses the login, or the database."""
# A connection without a client name saves two round trips. redis-py 8 renamed the option.
_HAS_DRIVER_INFO = "driver_info" in signature(AbstractConnection.__init__).parameters
_NAMELESS = dict.fromkeys(["driver_info"] if _HAS_DRIVER_INFO else ["lib_name", "lib_version"])
_DATABASE = re.compile(r"/*[0-9]*/*")
_OF_ADDRESS = frozenset({"host", "port", "path"})
_NOT_TEXT = frozenset(
    {
        "command_packer", "connection_class", "credential_provider", "event_dispatcher",
        "maint_notifications_config", "parser_class", "redis_connect_func", "retry",
        "retry_on_error", "socket_keepalive_options", "socket_type",
    }
)  # fmt: skip
"""Options of redis-py that take an object."""
_ASKING_FOR_NOTHING = {"username": None, "password": None, "db": 0, "protocol": 2}
_REPEATS = ", with args beginning with"
_LONGEST_ERROR = 500
_connections: WeakSet[AbstractConnection] = WeakSet()
"""Connections that this process has made, also those that a thread has not finished yet."""


class Connector:
    """Connections to one server, made by redis-py.

    Args:
        url: URL of the server.
        name: Name of the node in errors.
        timeout: Longest time for a connection attempt and for each step of it, seconds; options in
            the URL take precedence.

    Attributes:
        timeout: Longest time for a step of the handshake, seconds.
        database: Number of the database.

    Raises:
        ConfigurationError: The URL is not valid.
    """

    def __init__(self, url: str, name: str, timeout: float) -> None:
        self._connection_class, self._options = _connection_options(url, name)
        self._options.setdefault("socket_timeout", timeout)
        self._options.setdefault("socket_connect_timeout", timeout)
        self.timeout: float = self._options["socket_timeout"]
        self.database: int = self._options.get("db", 0)

    def without_secrets(self, error: Exception) -> str:
        """Return what an error of connecting says, without the URL's passwords.

        A server that does not know a command repeats its arguments, cut and with other blanks. Of
        what it says the beginning is returned: redis-py reads any length of it.
        """
        text, _, _ = str(error).partition(_REPEATS)
        for option in ("password", "ssl_password"):
            if secret := self._options.get(option):
                text = text.replace(str(secret), "***")
        return text[:_LONGEST_ERROR]

    def new_connection(self, *, asks_for_nothing: bool = False) -> AbstractConnection:
        """Return a connection that is not connected yet.

        Args:
            asks_for_nothing: Whether it neither logs in nor selects the database as it connects.
        """
        options = self._options | (_ASKING_FOR_NOTHING if asks_for_nothing else {})
        # A library's own retry could send a grant twice, which breaks the token.
        connection = self._connection_class(**options, retry=Retry(NoBackoff(), 0))
        _connections.add(connection)
        return connection


def _disown_connections() -> None:
    """In a child: close this process's copies of the connections; they are the parent's."""
    for connection in list(_connections):
        if copy := socket_of(connection):
            copy.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_connections)


def _connection_options(
    url: str, name: str
) -> tuple[Callable[..., AbstractConnection], dict[str, Any]]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ConfigurationError(
            f"node {name}: the scheme {scheme if separator else ''!r} can't be used; "
            f"write one of {', '.join(s + '://' for s in SCHEMES)}"
        )
    # redis-py ignores a path that is not a number: it selects database 0.
    if scheme != "unix" and not _DATABASE.fullmatch(urlsplit(url).path):
        raise ConfigurationError(
            f"node {name}: the path of its URL is not the number of a database; "
            "write redis://host:6379/0"
        )
    _refuse_options(parse_qs(urlsplit(url).query), name)
    try:
        options = dict(parse_url(scheme.replace("valkey", "redis") + separator + rest))
    except ValueError as error:
        # It names the option; what is below it shows its value.
        raise ConfigurationError(f"node {name}: {error}") from None
    if options.get("db", 0) < 0:
        raise ConfigurationError(
            f"node {name}: db, the number of its database, is negative; give 0 or more"
        )
    options.setdefault("protocol", 2)
    options.update(_NAMELESS)
    # Options of redis-py's pool, which is not used here.
    for unused in ("max_connections", "timeout", "retry_on_timeout", "decode_responses"):
        options.pop(unused, None)
    connection_class = options.pop("connection_class", Connection)
    if issubclass(connection_class, SSLConnection) and options.get("ssl_cert_reqs") != "none":
        # redis-py below 6 lets a signed certificate of any other host pass.
        options.setdefault("ssl_check_hostname", True)
    try:
        for timeout in options.keys() & {"socket_timeout", "socket_connect_timeout"}:
            check_seconds(timeout, options[timeout], above_zero=True, longest=LONGEST_S)
        connection_class(**options)
    except Exception as error:
        # Which one it raises depends on the option, and on redis-py's version.
        raise ConfigurationError(
            f"node {name}: an option of its URL can't be used: {error}"
        ) from error
    return connection_class, options


def _refuse_options(given: Iterable[str], name: str) -> None:
    for option in sorted(_OF_ADDRESS.intersection(given)):
        # All that names the node goes by its address, which would be another one.
        raise ConfigurationError(
            f"node {name}: its {option} is an option of its URL, where it is not read; "
            "write redis://host:6379/0 or unix:///path"
        )
    for option in sorted(_NOT_TEXT.intersection(given)):
        raise ConfigurationError(
            f"node {name}: {option} takes an object and can't be an option of its URL; remove it"
        )
