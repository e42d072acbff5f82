"""Admission: new nodes vote at once, because an operator knows that they never held a lock."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import cast

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.transport.direct import DirectConnection

from .listing import BATCH
from .locks import escaped
from .node_set import NodeSet, refusal_in
from .node_status import NodeStatus, read_statuses
from .operator_log import Action, recorded
from .target import Target

_is_of_probe = re.compile(rb":\{probe-[0-9a-f]{16}\}:floor$").search
"""A worker's check of the nodes leaves such a floor for a second."""


def candidates(target: Target, nodes: NodeSet) -> tuple[list[NodeStatus], list[str]]:
    """Return the nodes that wait for their restart guard, and what speaks against their admission.

    Every node must answer. A node that waits must have no key of the lock: else it is not new. No
    other node may have a lock: its holder may have counted on a node that forgot it.

    An attempt that began before a node forgot may have its vote, and the others only later. So this
    waits for a few seconds after the start of the youngest node before it looks for locks.
    """
    statuses = read_statuses(target, nodes)
    waiting = _guarded(statuses)
    youngest = min((one.number("uptime_in_seconds") or 0 for one in waiting), default=math.inf)
    guard_of_new = guard_s(0.0, target.max_clock_skew)
    pause = max(guard_of_new, target.patience) - youngest
    if pause > 0:
        SystemClock().sleep(pause)
        statuses = read_statuses(target, nodes)
    waiting = _guarded(statuses)
    objections = [
        f"{status.node}: {status.why}"
        for status in statuses
        if status.state not in (State.GUARDED, State.VOTES)
    ]
    if waiting and not objections:
        any_key = escaped(f"{target.key_prefix}:{{") + "*"
        lock_key = any_key + "}"
        for status, connection in zip(statuses, nodes.connections, strict=True):
            is_new = status in waiting
            found = _first_key(connection, any_key if is_new else lock_key)
            if isinstance(found, Failed):
                objections.append(f"{status.node}: {found.error}")
            elif found is not None:
                what = "it is not new, it has" if is_new else "it has the lock"
                objections.append(f"{status.node}: {what} {found}")
    return waiting, objections


def admit(
    target: Target, nodes: NodeSet, waiting: Sequence[NodeStatus], author: str, reason: str
) -> dict[str, str]:
    """Note on each waiting node that its server is new; return the errors, by node.

    A note is valid for this run of the server, as one of these nodes, and for leases no longer than
    the target's. One that restarts meanwhile gets none: its connection ends.

    Args:
        target: The nodes.
        nodes: Connections to them.
        waiting: Statuses of the nodes to admit.
        author: Who admits them, for the log to tell.
        reason: Why, for the log; '': nobody says.
    """
    names = ", ".join(status.node for status in waiting)
    with recorded(target, nodes, Action("admit", author, names, reason=reason)) as result:
        errors = _admit(target, nodes, waiting)
        failed = "; ".join(f"{node}: {error}" for node, error in errors.items())
        result.text = f"not admitted: {failed}" if failed else "admitted"
    return errors


def _admit(target: Target, nodes: NodeSet, waiting: Sequence[NodeStatus]) -> dict[str, str]:
    run_ids = {status.node: status.info["run_id"] for status in waiting}
    errors = {}
    for connection in nodes.connections:
        if connection.name in run_ids:
            admission = Admission(
                target.key_prefix, tuple(nodes.names), connection.name, target.guard
            )
            replies = connection.ask([admission.admitting(run_ids[connection.name])])
            if (why := refusal_in(replies)) is not None:
                errors[connection.name] = why
    return errors


def _guarded(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
    return [status for status in statuses if status.state is State.GUARDED]


def _first_key(connection: DirectConnection, pattern: str) -> str | Failed | None:
    """Return a key of a node that matches; None: there is none."""
    cursor = b"0"
    while True:
        replies = connection.ask([("SCAN", cursor, "MATCH", pattern, "COUNT", BATCH)])
        if (why := refusal_in(replies)) is not None:
            return Failed(why)
        cursor, keys = cast("list[tuple[bytes, list[bytes]]]", replies)[0]
        for key in keys:
            if not _is_of_probe(key):
                return key.decode(errors="replace")
        if cursor == b"0":
            return None
