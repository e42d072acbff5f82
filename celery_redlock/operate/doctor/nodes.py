"""Checks of the nodes, by what their INFO reports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from celery_redlock.operate.node_status import NodeStatus, votes
from celery_redlock.operate.target import Target

from . import traps
from .traps import Finding, Severity

_NEARLY = 0.8
_NO_REPLICATION_ID = "0" * 40
_NODE_TIMEOUT_TRIPS = 4
_OF_MAIN_PROCESS = 3


@dataclass(frozen=True, slots=True)
class Fleet:
    """All workers, with the pool prefork.

    Attributes:
        hosts: Number of workers.
        processes: Number of pool processes of each.
    """

    hosts: int
    processes: int

    @property
    def connections(self) -> int:
        """Most connections that the fleet opens to each node."""
        return self.hosts * (_OF_MAIN_PROCESS + self.processes)


def node_findings(
    target: Target, statuses: Sequence[NodeStatus], fleet: Fleet | None
) -> Iterator[Finding]:
    """Yield what is wrong with the nodes; `fleet`: the workers that they must be able to serve."""
    voting = votes(statuses)
    if voting < target.quorum:
        what = f"{voting} of {len(statuses)} vote, {target.quorum} needed"
        yield Finding(traps.NO_QUORUM, Severity.ERROR, "redlock_nodes", what)
    count = len(statuses)
    if count == 1:
        yield Finding(traps.SINGLE, Severity.WARNING, "redlock_nodes", "one URL")
    elif count % 2 == 0:
        yield Finding(traps.EVEN, Severity.ERROR, "redlock_nodes", f"{count} URLs")
    for url, status in zip(target.urls, statuses, strict=True):
        yield from _of_url(url, status)
        if status.error is not None:
            yield Finding(traps.DOWN, Severity.WARNING, status.node, status.error)
        else:
            yield from _of_identity(status)
            yield from _of_settings(status)
            yield from _of_connections(status, fleet)
            yield from _of_time(target, status)
    yield from _of_round_trips(target, statuses)


def _of_identity(status: NodeStatus) -> Iterator[Finding]:
    info, node = status.info, status.node
    if info.get("role") != "master":
        what = f"role:{info.get('role')}, master {info.get('master_host', 'unknown')}"
        yield Finding(traps.REPLICA, Severity.ERROR, node, what)
    elif info.get("connected_slaves", "0") != "0":
        what = f"connected_slaves:{info['connected_slaves']}"
        yield Finding(traps.REPLICATED, Severity.WARNING, node, what)
    elif info.get("master_replid2", _NO_REPLICATION_ID) != _NO_REPLICATION_ID:
        what = "master_replid2 is set: it was promoted since its start"
        yield Finding(traps.REPLICATED, Severity.WARNING, node, what)
    if status.is_in_cluster and status.refusal:
        yield Finding(traps.CLUSTER, Severity.ERROR, node, status.refusal)
    elif status.refusal and "same server" in status.refusal:
        yield Finding(traps.TWINS, Severity.ERROR, node, status.refusal)
    if status.votes_in and not status.refusal:
        yield Finding(traps.GUARDED, Severity.WARNING, node, str(status.why))


def _of_settings(status: NodeStatus) -> Iterator[Finding]:
    policy, node = status.info.get("maxmemory_policy"), status.node
    if policy is None:
        what = "its INFO does not tell maxmemory_policy"
        yield Finding(traps.EVICTION, Severity.UNKNOWN, node, what)
    elif policy != "noeviction":
        yield Finding(traps.EVICTION, Severity.ERROR, node, f"maxmemory_policy:{policy}")
    used, limit = status.number("used_memory"), status.number("maxmemory")
    if used and limit and used > _NEARLY * limit:
        what = f"used_memory:{used} of maxmemory:{limit}"
        yield Finding(traps.MEMORY, Severity.WARNING, node, what)


def _of_connections(status: NodeStatus, fleet: Fleet | None) -> Iterator[Finding]:
    clients, most = status.number("connected_clients"), status.number("maxclients")
    if clients and most and clients > _NEARLY * most:
        what = f"connected_clients:{clients} of maxclients:{most}"
        yield Finding(traps.CLIENTS, Severity.WARNING, status.node, what)
    if fleet and most is None:
        what = "its INFO does not tell maxclients"
        yield Finding(traps.FLEET, Severity.UNKNOWN, status.node, what)
    elif fleet and most is not None and fleet.connections > most:
        what = (
            f"{fleet.hosts} workers with {fleet.processes} pool processes each open up to "
            f"{fleet.connections} connections, maxclients:{most}"
        )
        yield Finding(traps.FLEET, Severity.ERROR, status.node, what)


def _of_time(target: Target, status: NodeStatus) -> Iterator[Finding]:
    offset = status.clock_offset
    if offset is not None and abs(offset) - status.clock_error > target.max_clock_skew:
        direction = "ahead of" if offset > 0 else "behind"
        what = (
            f"its clock is {abs(offset):.1f} s {direction} this machine's; redlock_max_clock_skew "
            f"is {target.max_clock_skew:g} s"
        )
        yield Finding(traps.CLOCK, Severity.ERROR, status.node, what)


def _of_round_trips(target: Target, statuses: Sequence[NodeStatus]) -> Iterator[Finding]:
    """Yield the nodes that are too slow: an error if too few are left for a quorum."""
    measured = [status for status in statuses if status.latency is not None]
    limit = target.node_timeout
    late = [status for status in measured if (status.latency or 0) > limit]
    is_fatal = len(measured) - len(late) < target.quorum
    for status in measured:
        latency = status.latency or 0.0
        if latency * _NODE_TIMEOUT_TRIPS > limit:
            severity = Severity.ERROR if is_fatal and status in late else Severity.WARNING
            what = f"round trip {latency * 1000:.1f} ms, redlock_node_timeout {limit * 1000:g} ms"
            yield Finding(traps.SLOW, severity, status.node, what)


def _of_url(url: str, status: NodeStatus) -> Iterator[Finding]:
    if not is_local(url) and urlsplit(url).scheme in ("redis", "valkey"):
        yield Finding(traps.PLAIN, Severity.WARNING, status.node, f"{urlsplit(url).scheme}://")


def is_local(url: str) -> bool:
    """Return whether a node's URL leads to this machine."""
    parts = urlsplit(url)
    if parts.scheme == "unix" or parts.hostname in (None, "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(parts.hostname)).is_loopback
    except ValueError:
        return False
