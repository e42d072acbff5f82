"""The command ``celery -A proj redlock admit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from celery_redlock.units import seconds

from .command_line import same_command
from .target import as_json, takes_reason, target_of
from .text import document

if TYPE_CHECKING:
    from celery_redlock.operate.node_status import NodeStatus
    from celery_redlock.operate.target import Target

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
    the same nodes in the same way, with a redlock_max_ttl and redlock_max_clock_skew that are not
    larger.
    """
    outcome = _admit(target_of(ctx), reason, yes=yes)
    click.echo(document(outcome.as_json()) if as_json else _text(outcome))
    ctx.exit(1 if outcome.objections else 0)


class _Outcome(NamedTuple):
    """Nodes that wait, the names of those that were admitted, and what speaks against others."""

    waiting: list[NodeStatus]
    admitted: list[str]
    objections: list[str]

    def as_json(self) -> dict[str, list[str]]:
        return self._asdict() | {"waiting": [one.node for one in self.waiting]}


def _admit(target: Target, reason: str, *, yes: bool) -> _Outcome:
    """Admit the nodes that wait, with `yes` and without an objection only."""
    from celery_redlock.operate.admission import admit as admit_nodes
    from celery_redlock.operate.admission import candidates
    from celery_redlock.operate.removal import operator

    with target.nodes() as nodes:
        waiting, objections = candidates(target, nodes)
        if objections or not (yes and waiting):
            return _Outcome(waiting, [], objections)
        errors = admit_nodes(target, nodes, waiting, operator(), reason)
    admitted = [one.node for one in waiting if one.node not in errors]
    return _Outcome(waiting, admitted, [f"{node}: {why}" for node, why in errors.items()])


def _text(outcome: _Outcome) -> str:
    lines = [f"{one.node}: votes in {seconds(one.votes_in)}" for one in outcome.waiting]
    if outcome.objections:
        return "\n".join([*lines, "Not admitted:", *outcome.objections])
    if not lines:
        return "No node waits for its restart guard."
    done = "Admitted. Clients notice within seconds."
    none = f"None was admitted. To admit them: {same_command('--yes')}"
    return "\n".join([*lines, _CONSEQUENCE, done if outcome.admitted else none])
