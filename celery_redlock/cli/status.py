"""The command ``celery -A proj redlock status``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .target import as_json, target_of
from .text import columns, document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.operate.node_status import NodeStatus
    from celery_redlock.operate.target import Target

HEADER = (
    "NODE", "STATE", "SERVER", "ROLE", "UP", "ROUND TRIP", "CLOCK", "MEMORY", "POLICY",
    "CONNECTIONS",
)  # fmt: skip
_COLOURS = {"votes": "green", "guarded": "yellow"}


@click.command()
@as_json
@click.pass_context
def status(ctx: click.Context, *, as_json: bool) -> None:
    """Show each node: whether it votes, and what it reports; and how many more may fail.

    Exits with 1 if no quorum votes.
    """
    ctx.exit(0 if _status(target_of(ctx), as_json=as_json) else 1)


def _status(target: Target, *, as_json: bool) -> bool:
    """Print the nodes; return whether a quorum votes."""
    from celery_redlock.operate.node_status import read_statuses, votes

    with target.nodes() as nodes:
        statuses = read_statuses(target, nodes)
    voting = votes(statuses)
    if as_json:
        shown = {
            "votes": voting,
            "needed": target.quorum,
            "enabled": not target.is_switched_off,
            "nodes": [status.as_json() for status in statuses],
        }
        click.echo(document(shown))
    else:
        click.echo(status_text(statuses, voting, target.quorum))
        if target.is_switched_off:
            click.echo("redlock_enabled is False: the app's tasks run without a lock.")
    return voting >= target.quorum


def status_text(statuses: Sequence[NodeStatus], voting: int, needed: int) -> str:
    """Return the table of the nodes, the reasons of those that don't vote, and the verdict."""
    from celery_redlock.operate.overview import verdict_on

    parts = [columns(HEADER, [node_row(status) for status in statuses])]
    reasons = [f"{status.node}: {status.why}" for status in statuses if status.why]
    if reasons:
        parts.append("\n".join(reasons))
    parts.append(verdict_on(voting, len(statuses), needed).text)
    return "\n\n".join(parts)


def node_row(status: NodeStatus) -> list[str]:
    """Return the cells of a node in a table."""
    row = status.row
    state = click.style(row.state, fg=_COLOURS.get(row.state, "red"))
    return list(row._replace(state=state))
