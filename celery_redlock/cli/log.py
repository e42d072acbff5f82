"""The command ``celery -A proj redlock log``."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from celery_redlock.units import count

from .parameters import TEXT, Duration
from .target import as_json, say_left_out, target_of
from .text import columns, document, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_redlock.operate.operator_log import Action
    from celery_redlock.operate.target import Target

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
    ctx.exit(0 if _log(target_of(ctx), key, since, as_json=as_json) else 1)


def _log(target: Target, key: str | None, since: float | None, *, as_json: bool) -> bool:
    """Print the actions; return whether a quorum has answered."""
    from celery_redlock.operate.operator_log import read_log

    with target.nodes() as nodes:
        actions, errors = read_log(target, nodes)
    if since is not None:
        actions = [one for one in actions if one.at >= time.time() - since]
    if key is not None:
        actions = [one for one in actions if one.key == key]
    click.echo(document([_as_json(one) for one in actions]) if as_json else _text(actions))
    say_left_out(errors)
    return len(target.urls) - len(errors) >= target.quorum


def _time(action: Action) -> datetime:
    return datetime.fromtimestamp(action.at, timezone.utc)


def _as_json(action: Action) -> dict[str, object]:
    return {
        "at": _time(action).isoformat(), "author": action.author, "action": action.action,
        "result": action.result, "key": action.key or None, "what": action.what,
        "reason": action.reason or None, "id": action.id,
    }  # fmt: skip


def _text(actions: Sequence[Action]) -> str:
    rows = [
        (
            f"{_time(one):%Y-%m-%d %H:%M:%S}",
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
