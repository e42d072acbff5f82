"""Checks of the workers that run, asked over the broker: whether they lock on the app's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery_redlock.operate.brokers import reason_in
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import NodeStatus
from celery_redlock.operate.target import Target
from celery_redlock.operate.workers import remote_control
from celery_redlock.redlock.placement import Placement

from . import traps
from .traps import Finding, Severity

_REPLIES_S = 1.0
_LOOK_S = 5.0
"""Longest wait for workers that look at their nodes first, some of which may hang."""


def worker_findings(
    target: Target, nodes: NodeSet, statuses: Sequence[NodeStatus], tasks: Sequence[str]
) -> Iterator[Finding]:
    """Yield the workers of these tasks that lock elsewhere than the app here, or not at all.

    Args:
        target: The app, and its nodes.
        nodes: Connections to the nodes.
        statuses: Status of each node.
        tasks: Names of the app's singleton tasks. Workers that know none of them are another app's.
    """
    if not tasks or not statuses:
        return
    try:
        yield from _compared(target.app, _placement(target, nodes, statuses), set(tasks))
    except Exception as error:  # noqa: BLE001  # of any broker's client
        what = f"the workers could not be asked: {reason_in(error)}"
        yield traps.ELSEWHERE.at("broker_url", what, Severity.UNKNOWN)


def _placement(target: Target, nodes: NodeSet, statuses: Sequence[NodeStatus]) -> Placement:
    seen = [
        (one.name, one.database, [status.info["run_id"]] if "run_id" in status.info else [])
        for one, status in zip(nodes.connections, statuses, strict=True)
    ]
    return Placement.of(target.key_prefix, seen)


def _compared(app: Any, here: Placement, tasks: set[str]) -> Iterator[Finding]:
    with remote_control(app) as connection:
        if connection is None:
            return
        inspect = app.control.inspect(timeout=_REPLIES_S, connection=connection)
        known = {
            worker: {str(name).split(" ")[0] for name in names}
            for worker, names in (inspect.registered() or {}).items()
        }
        workers = [worker for worker, names in known.items() if not names.isdisjoint(tasks)]
        said = _ask(app, connection, workers, look=False, timeout=_REPLIES_S)
        doubtful = [worker for worker, there in said.items() if _why(here, there)]
        # A node may have been restarted since they last looked.
        said |= _ask(app, connection, doubtful, look=True, timeout=_LOOK_S)
    for worker, there in sorted(said.items()):
        why = _why(here, there)
        if there is None:
            yield traps.DISABLED.at(worker, "redlock_enabled is False there")
        elif why:
            yield traps.ELSEWHERE.at(worker, f"{why}; here: {here}; there: {there}", Severity.ERROR)


def _why(here: Placement, there: Placement | None) -> str:
    return here.difference(there, is_fresh=True) if there else ""


def _ask(
    app: Any, connection: Any, workers: Sequence[str], *, look: bool, timeout: float
) -> dict[str, Placement | None]:
    """Return the placement of each worker that answers; None: it locks nothing."""
    if not workers:
        return {}
    replies = app.control.broadcast(
        "redlock_placement", {"look": look}, workers, connection, reply=True, timeout=timeout,
        limit=len(workers),
    )  # fmt: skip
    found: dict[str, Placement | None] = {}
    for worker, said in (pair for reply in replies for pair in reply.items()):
        text = said.get("placement") if isinstance(said, dict) else None
        if text == "" or Placement.read(text):
            found[str(worker)] = Placement.read(text)
    return found
