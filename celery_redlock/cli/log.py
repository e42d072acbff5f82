"""The command ``celery -A proj redlock log``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from celery_redlock.units import count

from .parameters import TEXT, Duration
from .target import as_json, target_of
from .text import columns, document, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.operate.operator_log import Action

_HEADER = ("TIME", "BY", "ACTION", "RESULT", "KEY", "WHAT", "REASON")


@click.command()
@click.option("--key", type=TEXT, help="Only actions on this key.")
@click.option("--since", type=Duration(), help="Only actions of the last so long, such as 2h.")
@as_json
@click.pass_context
def log(ctx: click.Context, *, key: str | None, since: float | None, as_json: bool) -> None:
    """Show what operators have done: releases, ended runs and admitted nodes, the latest last.

    The nodes keep the last 1000 actions, for 90 days.
    Exits with 1 if fewer nodes than a quorum answer.
    """
    from celery_redlock.operate.operator_log import read_log

    target = target_of(ctx)
    with target.nodes() as nodes:
        actions, errors = read_log(target, nodes)
        answers = len(nodes) - len(errors)
    if since is not None:
        actions = [one for one in actions if one.at >= time.time() - since]
    if key is not None:
        actions = [one for one in actions if one.key == key]
    click.echo(document([_as_json(one) for one in actions]) if as_json else _text(actions))
    for node, error in errors.items():
        click.echo(visible(f"{node} is left out: {error}"), err=True)
    ctx.exit(1 if answers < target.quorum else 0)


def _as_json(action: Action) -> dict[str, object]:
    at = datetime.fromtimestamp(action.at, timezone.utc).isoformat()
    return {
        "at": at, "author": action.author, "action": action.action, "result": action.result,
        "key": action.key or None, "what": action.what, "reason": action.reason or None,
        "id": action.id,
    }  # fmt: skip


def _text(actions: Sequence[Action]) -> str:
    rows = [
        (
            f"{datetime.fromtimestamp(one.at, timezone.utc):%Y-%m-%d %H:%M:%S}",
            *(
                visible(text) or "-"
                for text in (
                    one.author, one.action, one.result, one.key, one.what, one.reason,
                )
            ),
        )
        for one in actions
    ]  # fmt: skip
    table = f"{columns(_HEADER, rows)}\n\n" if rows else ""
    return f"{table}{count(len(rows), 'action')}. Times are UTC."
