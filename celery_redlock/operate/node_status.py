"""Status of each node: whether it votes, what it reports, its round trip and its clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from celery_redlock.redlock.clock import Clock, SystemClock
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import as_time
from celery_redlock.redlock.transport.direct import DirectConnection
from celery_redlock.units import milliseconds, seconds, size

from .node_set import NodeSet, refusal_in
from .target import Target

_SECTIONS = ("server", "replication", "memory", "clients", "persistence", "stats")
_SAMPLES = 5


class StatusRow(NamedTuple):
    """Status of a node as text, for tables."""

    node: str
    state: str
    server: str
    role: str
    up: str
    round_trip: str
    clock: str
    memory: str
    policy: str
    connections: str


@dataclass(frozen=True, slots=True)
class NodeStatus(Judgement):
    """Status of one node: its judgement by a lock, and what it reports.

    Attributes:
        info: What its INFO reports; empty: it could not be asked.
        latency: Median of a few round trips, seconds.
        clock_offset: How far its wall clock is ahead of this machine's, seconds.
        clock_error: Largest error of that offset, seconds.
    """

    info: Mapping[str, str] = field(default_factory=dict, repr=False)
    latency: float | None = None
    clock_offset: float | None = None
    clock_error: float = 0.0

    @property
    def version(self) -> str | None:
        """Name and version of the server."""
        if "valkey_version" in self.info:
            return f"Valkey {self.info['valkey_version']}"
        version = self.info.get("redis_version")
        return f"Redis {version}" if version else None

    @property
    def is_in_cluster(self) -> bool:
        """Whether it is in cluster mode."""
        return "cluster" in (self.info.get("redis_mode"), self.info.get("server_mode"))

    def number(self, name: str) -> int | None:
        """Return a number of its INFO, or None without it."""
        value = self.info.get(name)
        return int(value) if value and value.isdigit() else None

    @property
    def row(self) -> StatusRow:
        """The status as text."""
        used, limit = self.number("used_memory"), self.number("maxmemory")
        clients, most = self.number("connected_clients"), self.number("maxclients")
        return StatusRow(
            self.node, self.state.value, self.version or "-", self.info.get("role", "-"),
            seconds(self.number("uptime_in_seconds")), milliseconds(self.latency),
            milliseconds(self.clock_offset, sign="+"),
            size(used) + (f" of {size(limit)}" if limit else ""),
            self.info.get("maxmemory_policy", "-"),
            "-" if clients is None else f"{clients}" + (f" of {most}" if most else ""),
        )  # fmt: skip

    def as_json(self) -> dict[str, object]:
        """Return the status as plain JSON values; times are in seconds."""
        return {
            "node": self.node,
            "state": self.state.value,
            "why": self.why,
            "role": self.info.get("role"),
            "version": self.version,
            "uptime": self.number("uptime_in_seconds"),
            "votes_in": round(self.votes_in, 3),
            "latency": self.latency and round(self.latency, 6),
            "clock_offset": self.clock_offset and round(self.clock_offset, 6),
            "memory": self.number("used_memory"),
            "max_memory": self.number("maxmemory"),
            "policy": self.info.get("maxmemory_policy"),
            "connections": self.number("connected_clients"),
            "max_connections": self.number("maxclients"),
        }


def read_statuses(target: Target, nodes: NodeSet) -> list[NodeStatus]:
    """Return the status of each node; all are asked at the same time.

    Raises:
        ConfigurationError: Their number is even, or a node is named twice.
    """
    # This wakes connections and servers, whose round trips are measured next.
    judged = target.judge()
    return nodes.on_each(partial(_read_status, SystemClock()), judged)


def _read_status(clock: Clock, connection: DirectConnection, judgement: Judgement) -> NodeStatus:
    of_node = partial(
        NodeStatus, judgement.node, judgement.state, judgement.why, judgement.votes_in
    )
    raws = connection.ask([("INFO", section) for section in _SECTIONS])
    if refusal_in(raws) is not None:
        return of_node()
    said: Any = raws
    info = dict(pair for raw in said for pair in _fields_of(raw))
    samples = [_sample(connection, clock) for _ in range(_SAMPLES)]
    measured = [sample for sample in samples if sample is not None]
    if not measured:
        return of_node(info)
    round_trip, offset = min(measured)
    latency = statistics.median(trip for trip, _ in measured)
    return of_node(info, latency, offset, round_trip / 2)


def votes(statuses: Sequence[NodeStatus]) -> int:
    """Return how many nodes vote."""
    return sum(status.state is State.VOTES for status in statuses)


def _fields_of(raw: bytes) -> Iterator[tuple[str, str]]:
    """Yield the fields of a reply to INFO."""
    for line in raw.decode(errors="replace").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value


def _sample(connection: DirectConnection, clock: Clock) -> tuple[float, float] | None:
    """Return a round trip, and how far the node's clock is ahead, both in seconds."""
    began, wall = clock.now(), clock.wall_us()
    raws = connection.ask([("TIME",)])
    round_trip = clock.now() - began
    there = raws if isinstance(raws, Failed) else as_time(raws[0])
    if isinstance(there, Failed):
        return None
    return round_trip, there - wall / 1e6 - round_trip / 2
