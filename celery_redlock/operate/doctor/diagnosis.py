"""Diagnosis: the findings of all checks, each once and the worst first."""

from __future__ import annotations

from celery_redlock.operate.node_status import NodeStatus, read_statuses
from celery_redlock.operate.target import Target
from celery_redlock.redlock.errors import ConfigurationError

from . import traps
from .app import app_findings
from .nodes import node_findings
from .rights import rights_findings
from .traps import Finding, Severity


def diagnose(target: Target, fleet: tuple[int, int] | None = None) -> list[Finding]:
    """Return what is wrong with the nodes, and with the app if there is one; the worst first.

    A lock is written on each node under a key of its own, and deleted at once.

    Args:
        target: The nodes, and the app if there is one.
        fleet: Number of workers with the pool prefork, and of pool processes of each, whose
            connections the nodes must have room for; None: not checked.
    """
    with target.nodes() as nodes:
        statuses: list[NodeStatus] = []
        try:
            statuses = read_statuses(target, nodes)
        except ConfigurationError as error:
            trap = traps.TWINS if len(nodes) % 2 else traps.EVEN
            found = [trap.at("redlock_nodes", str(error), Severity.ERROR)]
        else:
            found = [*node_findings(target, statuses, fleet)]
        found += rights_findings(target, nodes)
        if target.app is not None:
            found += app_findings(target, nodes, statuses)
    # The judgement and the rights may find the same reason why a node is down.
    found = [*dict.fromkeys(found)]
    return sorted(found, key=lambda finding: (finding.severity.rank, finding.trap.code))
