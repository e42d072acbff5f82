"""The doctor: a check for every known trap, each with a stable code."""

from __future__ import annotations

from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import read_statuses
from celery_redlock.operate.target import Target

from .app import app_findings
from .nodes import Fleet, node_findings
from .rights import rights_findings
from .traps import Finding, Severity

__all__ = ["Finding", "Fleet", "Severity", "diagnose"]


def diagnose(target: Target, fleet: Fleet | None = None) -> list[Finding]:
    """Return what is wrong with the nodes, and with the app if there is one; the worst first.

    A lock is written on each node under a key of its own, and deleted at once.

    Args:
        target: The nodes, and the app if there is one.
        fleet: All workers whose connections the nodes must have room for; None: not checked.
    """
    with NodeSet(target.urls, target.patience) as nodes:
        statuses = read_statuses(target, nodes)
        found = [*node_findings(target, statuses, fleet), *rights_findings(target, nodes)]
        if target.app is not None:
            found += app_findings(target, nodes, statuses)
    return sorted(found, key=lambda finding: (finding.severity.rank, finding.trap.code))
