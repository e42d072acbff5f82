"""The command ``celery -A proj redlock admit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_redlock.units import seconds

from .target import as_json, target_of
from .text import document

if TYPE_CHECKING:
    from celery_redlock.operate.admission import Admission

_CONSEQUENCE = (
    "Consequence: these nodes vote without the wait for the restart guard. If one of them is not "
    "new, and has forgotten a lock in a restart, two tasks may hold that lock at once."
)


@click.command()
@click.option("--yes", is_flag=True, help="Admit; without it, only show what would happen.")
@as_json
@click.pass_context
def admit(ctx: click.Context, *, yes: bool, as_json: bool) -> None:
    """Let new nodes vote at once: ones that have never held a lock.

    A restarted node is not new: wait. Refused if a node can't be asked, if a node that waits has
    any key of the lock, or if any other has a lock. Exits with 1 then. Valid for clients that name
    the same nodes in the same way, with a redlock_max_ttl that is not larger.
    """
    from celery_redlock.operate.admission import admission_of
    from celery_redlock.operate.admission import admit as admit_nodes
    from celery_redlock.operate.node_set import NodeSet

    target = target_of(ctx)
    with NodeSet(target.urls, target.patience) as nodes:
        found = admission_of(target, nodes)
        is_made = yes and not found.objections
        errors = admit_nodes(target, nodes, found) if is_made else {}
    objections = [*found.objections, *(f"{node}: {error}" for node, error in errors.items())]
    if as_json:
        waiting = [one.node for one in found.waiting]
        admitted = [node for node in waiting if is_made and node not in errors]
        shown = {"waiting": waiting, "admitted": admitted, "objections": objections}
        click.echo(document(shown))
    else:
        click.echo(_text(found, objections, is_made=is_made))
    ctx.exit(1 if objections else 0)


def _text(found: Admission, objections: list[str], *, is_made: bool) -> str:
    lines = [f"{one.node}: votes in {seconds(one.votes_in)}" for one in found.waiting]
    if objections:
        return "\n".join([*lines, "Not admitted:", *objections])
    if not lines:
        return "No node waits for its restart guard."
    done = "Admitted. Clients notice within seconds."
    return "\n".join(
        [*lines, _CONSEQUENCE, done if is_made else "None was admitted. To do so: --yes"]
    )
