"""Checks of the nodes, by what their INFO reports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from celery_redlock.operate.node_status import NodeStatus, votes
from celery_redlock.operate.target import Target
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.protocol.replies import says_denied

from . import traps
from .traps import Finding, Severity

_NEARLY = 0.8
_NO_REPLICATION_ID = "0" * 40
_NODE_TIMEOUT_TRIPS = 4
_OF_MAIN_PROCESS = 3


def node_findings(
    target: Target, statuses: Sequence[NodeStatus], fleet: tuple[int, int] | None
) -> Iterator[Finding]:
    """Yield what is wrong with the nodes; `fleet`: as in `diagnose`."""
    voting = votes(statuses)
    is_fatal = voting < target.quorum
    if is_fatal:
        what = f"{voting} of {len(statuses)} vote, {target.quorum} needed"
        yield traps.NO_QUORUM.at("redlock_nodes", what, Severity.ERROR)
    if len(statuses) == 1:
        yield traps.SINGLE.at("redlock_nodes", "one URL")
    for url, status in zip(target.urls, statuses, strict=True):
        yield from _of_url(url, status)
        yield from _of_state(status, is_fatal=is_fatal)
        if status.info:
            yield from _of_replication(status)
            yield from _of_settings(status)
            yield from _of_connections(status, fleet)
            yield from _of_time(target, status)
            yield from _of_round_trip(target, status)


def _of_state(status: NodeStatus, *, is_fatal: bool) -> Iterator[Finding]:
    """Yield why a node does not vote, unless that is found with its rights."""
    what = str(status.why)
    match status.state:
        case State.DOWN if not (status.info and says_denied(what)):
            yield traps.DOWN.at(status.node, what)
        case State.GUARDED:
            yield traps.GUARDED.at(status.node, what)
        case State.SLOW:
            severity = Severity.ERROR if is_fatal else Severity.WARNING
            yield traps.SLOW.at(status.node, what, severity)
        case State.UNFIT if "same server" in what:
            yield traps.TWINS.at(status.node, what, Severity.ERROR)
        case State.UNFIT if status.is_in_cluster:
            yield traps.CLUSTER.at(status.node, what, Severity.ERROR)
        case State.UNFIT:
            yield traps.REPLICA.at(status.node, what, Severity.ERROR)


def _of_replication(status: NodeStatus) -> Iterator[Finding]:
    info, node = status.info, status.node
    if info.get("connected_slaves", "0") != "0":
        yield traps.REPLICATED.at(node, f"connected_slaves:{info['connected_slaves']}")
    elif info.get("master_replid2", _NO_REPLICATION_ID) != _NO_REPLICATION_ID:
        yield traps.REPLICATED.at(node, "master_replid2 is set: it was promoted since its start")


def _of_settings(status: NodeStatus) -> Iterator[Finding]:
    policy, node = status.info.get("maxmemory_policy"), status.node
    if policy is None:
        yield traps.EVICTION.at(node, "its INFO does not tell maxmemory_policy", Severity.UNKNOWN)
    elif policy != "noeviction":
        yield traps.EVICTION.at(node, f"maxmemory_policy:{policy}", Severity.ERROR)
    used, limit = status.number("used_memory"), status.number("maxmemory")
    if used and limit and used > _NEARLY * limit:
        yield traps.MEMORY.at(node, f"used_memory:{used} of maxmemory:{limit}")


def _of_connections(status: NodeStatus, fleet: tuple[int, int] | None) -> Iterator[Finding]:
    clients, most = status.number("connected_clients"), status.number("maxclients")
    if clients and most and clients > _NEARLY * most:
        yield traps.CLIENTS.at(status.node, f"connected_clients:{clients} of maxclients:{most}")
    if fleet is None:
        return
    if most is None:
        yield traps.FLEET.at(status.node, "its INFO does not tell maxclients", Severity.UNKNOWN)
        return
    hosts, processes = fleet
    opened = hosts * (_OF_MAIN_PROCESS + processes)
    if opened > most:
        what = (
            f"{hosts} workers with {processes} pool processes each open up to {opened} "
            f"connections, maxclients:{most}"
        )
        yield traps.FLEET.at(status.node, what, Severity.ERROR)


def _of_time(target: Target, status: NodeStatus) -> Iterator[Finding]:
    offset = status.clock_offset
    if offset is not None and abs(offset) - status.clock_error > target.max_clock_skew:
        direction = "ahead of" if offset > 0 else "behind"
        what = (
            f"its clock is {abs(offset):.1f} s {direction} this machine's; redlock_max_clock_skew "
            f"is {target.max_clock_skew:g} s"
        )
        yield traps.CLOCK.at(status.node, what, Severity.ERROR)


def _of_round_trip(target: Target, status: NodeStatus) -> Iterator[Finding]:
    """Yield a finding if a node that votes is nearly too slow."""
    latency, limit = status.latency or 0.0, target.node_timeout
    if status.state is State.VOTES and latency * _NODE_TIMEOUT_TRIPS > limit:
        what = f"round trip {latency * 1000:.1f} ms, redlock_node_timeout {limit * 1000:g} ms"
        yield traps.SLOW.at(status.node, what)


def _of_url(url: str, status: NodeStatus) -> Iterator[Finding]:
    if not is_local(url) and urlsplit(url).scheme in ("redis", "valkey"):
        yield traps.PLAIN.at(status.node, f"{urlsplit(url).scheme}://")


def is_local(url: str) -> bool:
    """Return whether a node's URL leads to this machine."""
    host = urlsplit(url).hostname
    if host in (None, "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False
