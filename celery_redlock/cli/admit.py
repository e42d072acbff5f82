"""The command ``celery -A proj redlock admit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_redlock.units import seconds

from .command_line import same_command
from .target import as_json, takes_reason, target_of
from .text import document

if TYPE_CHECKING:
    from celery_redlock.operate.node_status import NodeStatus

_CONSEQUENCE = (
    "Consequence: these nodes vote without the wait for the restart guard. If one of them is not "
    "new, and has forgotten a lock in a restart, two tasks may hold that lock at once."
)


@click.command()
@takes_reason
@click.option("--yes", is_flag=True, help="Admit; without it, only show what would happen.")
@as_json
@click.pass_context
def admit(ctx: click.Context, *, reason: str, yes: bool, as_json: bool) -> None:
    """Let new nodes vote at once: ones that have never held a lock.

    A restarted node is not new: wait. Refused if a node can't be asked, if a node that waits has
    any key of the lock, or if any other has a lock. Exits with 1 then. Valid for clients that name
    the same nodes in the same way, with a redlock_max_ttl that is not larger.
    """
    from celery_redlock.operate.admission import admit as admit_nodes
    from celery_redlock.operate.admission import candidates
    from celery_redlock.operate.removal import operator

    target = target_of(ctx)
    with target.nodes() as nodes:
        waiting, objections = candidates(target, nodes)
        is_made = bool(yes and waiting and not objections)
        errors = admit_nodes(target, nodes, waiting, operator(), reason) if is_made else {}
    objections += [f"{node}: {error}" for node, error in errors.items()]
    if as_json:
        names = [one.node for one in waiting]
        admitted = [node for node in names if is_made and node not in errors]
        click.echo(document({"waiting": names, "admitted": admitted, "objections": objections}))
    else:
        click.echo(_text(waiting, objections, is_made=is_made))
    ctx.exit(1 if objections else 0)


def _text(waiting: list[NodeStatus], objections: list[str], *, is_made: bool) -> str:
    lines = [f"{one.node}: votes in {seconds(one.votes_in)}" for one in waiting]
    if objections:
        return "\n".join([*lines, "Not admitted:", *objections])
    if not lines:
        return "No node waits for its restart guard."
    done = "Admitted. Clients notice within seconds."
    none = f"None was admitted. To admit them: {same_command('--yes')}"
    return "\n".join([*lines, _CONSEQUENCE, done if is_made else none])
