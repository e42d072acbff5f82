"""Simulated nodes as an operator's commands see them: what they report, and what they refuse.

    nodes = Operated(3, monkeypatch)
    nodes[1].info["maxmemory_policy"] = "allkeys-lru"
    nodes[2].is_up = False
    statuses = read_statuses(nodes.target(), nodes.opened())

The last digit of a URL is the node that it leads to, whatever else is in the URL.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import hiredis
import pytest

from celery_redlock.operate import node_set, node_status
from celery_redlock.operate import target as targets
from celery_redlock.operate.target import Target
from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import Argument
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.transport import node, redis_py, restart_guard
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.direct import ErrorReply
from celery_redlock.redlock.transport.handshake import Handshake
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.validation import address_of

from .simulated_network import Network, Peer, SimulatedChannel

_PAGE = 2
_UPTIME_S = 86_400


class Reporting(Peer):
    """A node that also answers what only operators ask.

    Attributes:
        info: Fields of its INFO.
        conf: Its configuration.
        user: Reply to ACL WHOAMI.
        rights: Reply to ACL GETUSER.
        refused: The errors that it answers with, by the name of the command.
    """

    def __init__(self, network: Network, number: int) -> None:
        super().__init__(network)
        self.info = {
            "role": "master",
            "run_id": f"run-{number}",
            "redis_version": "7.0.15",
            "uptime_in_seconds": str(_UPTIME_S),
            "maxmemory_policy": "noeviction",
            "used_memory": "1000000",
            "maxmemory": "0",
            "connected_clients": "2",
            "maxclients": "10000",
        }
        self.conf = {
            "appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no",
        }  # fmt: skip
        self.user = b"default"
        self.rights: Any = [b"flags", [b"on"], b"commands", b"-@all +get"]
        self.refused: dict[str, str] = {}

    def execute(self, command: tuple[Argument, ...]) -> object:
        name = str(command[0]).split()[0]
        if name in self.refused:
            return ErrorReply(self.refused[name])
        if name == "ACL":
            said: dict[Any, object] = {
                ("WHOAMI",): self.user, ("GETUSER", self.user): self.rights,
            }  # fmt: skip
            return said[command[1:]]
        return super().execute(command)

    def keys(self) -> list[str]:
        """Return the names of its keys."""
        return [key for key in list(self._data) if self._look(key) is not None]

    def _do_info(self, section: str) -> bytes:
        lines = [f"{name}:{value}" for name, value in self.info.items()]
        return "\r\n".join(["# Server", *lines] if section == "server" else ["# Other"]).encode()

    def _do_getrange(self, key: str, start: str, end: str) -> object:
        value = self._look(key)
        if not isinstance(value, str | None):
            return ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")
        return (value or "").encode()[int(start) : int(end) + 1]

    def _do_mget(self, *keys: str) -> list[bytes | None]:
        # As on a server: None for a value that is no string.
        values = [self._look(key) for key in keys]
        return [value.encode() if isinstance(value, str) else None for value in values]

    def _do_exists(self, *keys: str) -> int:
        return sum(self._look(key) is not None for key in keys)

    def _do_pexpire(self, key: str, ttl_ms: str) -> int:
        self._pexpire(key, float(ttl_ms))
        return int(self._look(key) is not None)

    def _do_lpush(self, key: str, value: str) -> int:
        values: Any = self._look(key) or []
        longer: Any = [value, *values]
        self._set(key, longer, math.inf)
        return len(longer)

    def _do_ltrim(self, key: str, start: str, end: str) -> bytes:
        values: Any = self._look(key) or []
        self._set(key, values[int(start) : int(end) + 1], math.inf)
        return b"OK"

    def _do_lrange(self, key: str, start: str, end: str) -> list[bytes]:
        values: Any = self._look(key) or []
        return [value.encode() for value in values[int(start) : int(end) + 1]]

    def _do_dbsize(self) -> int:
        return len(self.keys())

    def _do_scan(
        self, cursor: str, match: str, pattern: str, count: str, most: str
    ) -> list[object]:
        assert (match, count, int(most) > 0) == ("MATCH", "COUNT", True)
        start, names = int(cursor), self.keys()
        end = start + _PAGE
        glob = re.sub(r"\\(.)", r"[\1]", pattern)
        page = [
            name.encode(errors="surrogateescape")
            for name in names[start:end]
            if fnmatch.fnmatchcase(name, glob)
        ]
        # A server may return a key twice.
        return [str(end if end < len(names) else 0).encode(), page + page[:1]]

    def _do_config(self, action: str, name: str, value: str = "") -> Any:
        if action == "SET":
            return super()._do_config(action, name, value)
        assert action == "GET"
        pairs = [pair for pair in self.conf.items() if fnmatch.fnmatchcase(pair[0], name)]
        return [text.encode() for pair in pairs for text in pair]

    def _do_cluster(self, question: str) -> Any:
        return b"me" if question == "MYID" else []


class Operated(Network):
    """Nodes that commands lead to, in a time that stands still."""

    def __init__(self, count: int, patch: pytest.MonkeyPatch) -> None:
        super().__init__(count, patch)
        self._reporting = [Reporting(self, number) for number in range(count)]
        self.nodes[:] = self._reporting

        class Direct(SimulatedConnection):
            network = self

        patch.setattr(node_set, "DirectConnection", Direct)
        patch.setattr(node_set, "packed", lambda commands: commands)
        patch.setattr(node_status, "SystemClock", lambda: self)
        patch.setattr(targets, "TaskLock", self.new_redlock)
        # A server is known by its identity to all locks of a process.
        patch.setattr(restart_guard, "_identities", {})
        patch.setattr(node, "NodeConnection", lambda *_: SimpleNamespace(votes_from=0.0))

        class To(_SimulatedConnector):
            network = self

        patch.setattr(redis_py, "Connector", To)

        def exchange(
            handshake: Any, _connection: object, payload: bytes, count: int
        ) -> list[object]:
            reader = hiredis.Reader(encoding="utf-8")
            reader.feed(payload)
            peer = self[int(handshake._name[-1])]
            return [peer.execute(tuple(reader.gets())) for _ in range(count)]

        patch.setattr(Handshake, "_exchange", exchange)

    def __getitem__(self, number: int) -> Reporting:
        return self._reporting[number]

    def __len__(self) -> int:
        return len(self._reporting)

    @property
    def urls(self) -> list[str]:
        """URLs of the nodes."""
        return [f"redis://127.0.0.1:700{number}" for number in range(len(self))]

    def target(self, **options: Any) -> Target:
        """Return the nodes as a command's target."""
        return Target(**{"urls": self.urls} | options)

    def opened(self) -> node_set.NodeSet:
        """Return connections to the nodes."""
        return node_set.NodeSet(self.urls, 1.0).__enter__()

    def new_redlock(
        self, urls: Sequence[str], clock: Clock | None = None, **options: Any
    ) -> TaskLock:
        """Return a client of the nodes at these URLs, in their order."""
        self.redlock()  # which makes the lock's parts simulated ones
        return TaskLock(urls, clock=clock or self, **options)

    def _new_channel(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> Channel:
        return _IntroducedChannel(self, next(self._channels), nodes, node_timeout)


class _SimulatedConnector(redis_py.Connector):
    """A connector to one of `network`."""

    network: Operated

    def __init__(self, url: str, name: str, timeout: float) -> None:
        super().__init__(url, name, timeout)
        self._peer = self.network[int(name[-1])]

    def new_connection(self, **_: Any) -> Any:
        return SimpleNamespace(connect=self._connect, disconnect=lambda: None)

    def _connect(self) -> None:
        if not self._peer.is_up:
            raise ConnectionRefusedError("Connection refused")


class _IntroducedChannel(SimulatedChannel):
    """A channel whose nodes are asked who they are, as by a handshake on a new connection."""

    def connect_all(self) -> None:
        """Try every node."""
        for one in self.nodes:
            with suppress(ConnectionError, ConfigurationError):
                self._votes_from[one.name] = one.connect().votes_from

    @cached_property
    def _votes_from(self) -> dict[str, float]:
        return {}

    def _peer(self, index: int) -> Peer:
        # By its URL: not every client has the nodes in the same order.
        return self._network.nodes[int(self.nodes[index].name[-1])]

    def everyone(self) -> list[int]:
        """Return all nodes that are up, and were not refused."""
        return [index for index in super().everyone() if self.nodes[index].error is None]

    def votes_in(self, index: int) -> float:
        """Return the rest of a node's restart guard, seconds."""
        votes_from = self._votes_from.get(self.nodes[index].name, 0.0)
        return max(0.0, votes_from - self._network.now())


class SimulatedConnection:
    """A direct connection to one of `network`."""

    network: Operated

    def __init__(self, url: str, clock: Clock, timeout: float) -> None:
        clock.now()  # as for a deadline
        self.name = address_of(url)
        self.timeout = timeout
        self.error: str | None = "not connected yet"
        self._node = self.network[int(url[-1])]
        self._sent: deque[tuple[Argument, ...]] = deque()

    def connect(self) -> None:
        self.error = None if self._node.is_up else "Connection refused"

    def ask(self, commands: Sequence[tuple[Argument, ...]]) -> list[object] | Failed:
        self.send(commands, len(commands))
        return self.receive(len(commands))

    def send(self, commands: Sequence[tuple[Argument, ...]], count: int) -> None:
        assert len(commands) == count
        assert all(isinstance(word, Argument) for command in commands for word in command)
        self._sent.extend(commands)

    def receive(self, count: int) -> list[object] | Failed:
        if self.error is None and not self._node.is_up:
            self.fail("Connection closed")
        if self.error is not None:
            return Failed(self.error)
        return [self._node.execute(self._sent.popleft()) for _ in range(count)]

    def fail(self, why: str) -> None:
        self.error = self.error or why

    def close(self) -> None:
        self.error = self.error or "closed"
