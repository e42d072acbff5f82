"""Status of each node: what it reports about itself, its round trip and its clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from celery_redlock.redlock.clock import Clock, SystemClock
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import as_time
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply

from .node_set import NodeSet
from .target import Target

_SECTIONS = ("server", "replication", "memory", "clients", "persistence", "stats")
_SAMPLES = 5
_SLOTS = 16384


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status of one node. Without an answer only `node` and `error` are set.

    Attributes:
        node: Address.
        error: Reason why it could not be asked; None: it answered.
        info: What its INFO reports.
        latency: Median of a few round trips, seconds.
        clock_offset: How far its wall clock is ahead of this machine's, seconds.
        clock_error: Largest error of that offset, seconds.
        slots: Hash slots that it serves; None: not in cluster mode, or unknown.
        votes_in: Rest of its restart guard, seconds; 0.0: over, or off.
        refusal: Reason why no client accepts it as a node; None: it is accepted.
    """

    node: str
    error: str | None = None
    info: Mapping[str, str] = field(default_factory=dict, repr=False)
    latency: float | None = None
    clock_offset: float | None = None
    clock_error: float = 0.0
    slots: int | None = None
    votes_in: float = 0.0
    refusal: str | None = None

    @property
    def state(self) -> str:
        """Whether it votes, in one word."""
        if self.error is not None:
            return "down"
        if self.refusal is not None:
            return "refused"
        return "guarded" if self.votes_in else "votes"

    @property
    def why(self) -> str | None:
        """Reason why it does not vote; None: it votes."""
        if self.votes_in and not self.refusal:
            return f"restarted lately, votes in {self.votes_in:.0f} s"
        return self.error or self.refusal

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
        value = self.info.get(name, "")
        return int(value) if value.isdigit() else None

    def as_json(self) -> dict[str, object]:
        """Return the status as plain JSON values; times are in seconds."""
        return {
            "node": self.node,
            "state": self.state,
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


def read_statuses(target: Target, nodes: NodeSet, clock: Clock | None = None) -> list[NodeStatus]:
    """Return the status of each node; all are asked at the same time."""
    at = clock or SystemClock()
    return with_twins(nodes.on_each(lambda one: read_status(one, target, at)))


def read_status(connection: DirectConnection, target: Target, clock: Clock) -> NodeStatus:
    """Return the status of one node.

    Args:
        connection: Connection to it.
        target: Settings of the lock.
        clock: Time.
    """
    raws = connection.ask([("INFO", section) for section in _SECTIONS])
    if isinstance(raws, Failed):
        return NodeStatus(connection.name, raws.error)
    if error := next((str(raw) for raw in raws if isinstance(raw, ErrorReply)), None):
        return NodeStatus(connection.name, error)
    info = dict(pair for raw in raws for pair in info_of(raw))
    samples = [_sample(connection, clock) for _ in range(_SAMPLES)]
    measured = [sample for sample in samples if sample is not None]
    round_trip, offset = min(measured, default=(0.0, None))
    uptime = info.get("uptime_in_seconds", "")
    status = NodeStatus(
        connection.name,
        None if measured else connection.error or "it does not tell the time",
        info,
        statistics.median([latency for latency, _ in measured]) if measured else None,
        offset,
        round_trip / 2,
    )
    guard = _guard(connection, target, info.get("run_id", ""))
    left = max(0.0, guard - int(uptime)) if uptime.isdigit() else guard
    status = replace(status, votes_in=left)
    return judged(status, _slots(connection) if status.is_in_cluster else None)


def judged(status: NodeStatus, slots: int | None) -> NodeStatus:
    """Return the status with the reason, if any, why no client accepts the server as a node."""
    role, refusal = status.info.get("role"), None
    if role != "master":
        refusal = f"it is a {role}: a lock that a replica grants is lost in a failover"
    elif status.is_in_cluster and (slots or 0) < _SLOTS:
        refusal = f"it is in cluster mode and serves {slots or 'none'} of {_SLOTS} slots"
    return replace(status, slots=slots, refusal=refusal)


def with_twins(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the statuses; of several addresses of one server, each but the first is refused."""
    first: dict[str, str] = {}
    found = []
    for status in statuses:
        run_id = status.info.get("run_id")
        twin = first.setdefault(run_id, status.node) if run_id else status.node
        if twin != status.node:
            status = replace(status, refusal=f"it is the same server as {twin}")  # noqa: PLW2901
        found.append(status)
    return found


def votes(statuses: Sequence[NodeStatus]) -> int:
    """Return how many nodes vote; with one that is refused, none does."""
    states = [status.state for status in statuses]
    return 0 if "refused" in states else states.count("votes")


def info_of(raw: object) -> Iterator[tuple[str, str]]:
    """Yield the fields of a reply to INFO."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else ""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name, value


def _guard(connection: DirectConnection, target: Target, run_id: str) -> float:
    """Return the restart guard of the server `run_id`, seconds, as a new client counts it."""
    admission = target.admission_at(connection.name)
    raws = connection.ask([admission.reading]) if target.guard else Failed("")
    if not isinstance(raws, Failed) and admission.run_id_in(raws[0]) == run_id:
        return min(target.guard, target.guard_of_admitted)
    return target.guard


def _sample(connection: DirectConnection, clock: Clock) -> tuple[float, float] | None:
    """Return a round trip, and how far the node's clock is ahead, both in seconds."""
    began, wall = clock.now(), clock.wall_us()
    raws = connection.ask([("TIME",)])
    round_trip = clock.now() - began
    there = Failed("") if isinstance(raws, Failed) else as_time(raws[0])
    if isinstance(there, Failed):
        return None
    return round_trip, there - wall / 1e6 - round_trip / 2


def _slots(connection: DirectConnection) -> int | None:
    """Return how many hash slots the node itself serves, or None if it does not tell."""
    raws = connection.ask([("CLUSTER", "MYID"), ("CLUSTER", "SLOTS")])
    if isinstance(raws, Failed) or any(isinstance(raw, ErrorReply) for raw in raws):
        return None
    myself, slots = raws
    served = 0
    for first, last, (_host, _port, node_id, *_), *_ in cast(Any, slots):
        if node_id == myself:
            served += last - first + 1
    return served
