"""The command ``celery -A proj redlock top``."""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from celery_redlock.units import seconds

from .list_ import HEADER as LOCK_HEADER
from .list_ import row_of
from .parameters import Seconds
from .status import HEADER as NODE_HEADER
from .status import node_row
from .target import as_json, target_of
from .text import columns, json_text, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from celery_redlock.operate.overview import Overview

    Update = tuple[Overview, float | str]  # nodes and locks, conflicts per second


_MOST_MISSED = 3


@click.command()
@click.option(
    "--interval",
    type=Seconds(min=0.1),
    default=2.0,
    show_default=True,
    help="Time between two updates, in seconds.",
)
@click.option("--count", type=click.IntRange(min=1), help="Number of updates; by default no end.")
@click.option(
    "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Locks to show."
)
@as_json
@click.pass_context
def top(
    ctx: click.Context, *, interval: float, count: int | None, lines: int, as_json: bool
) -> None:
    """Show nodes, conflicts and the longest held locks, again and again, until Ctrl-C.

    On a terminal it is a live table, which needs rich; elsewhere plain text. With --json each line
    is a document.
    """
    from celery_redlock.operate.incidents import Incidents
    from celery_redlock.operate.overview import read_overview

    target = target_of(ctx)
    is_live = sys.stdout.isatty() and not as_json

    def each() -> Iterator[Update]:
        for number in itertools.count():
            if number:
                time.sleep(interval)
            overview = read_overview(target, lines, now=time.time)
            yield overview, incidents.conflict_rate(overview.at)
            if number + 1 == count:
                return

    with suppress(KeyboardInterrupt), Incidents(target.app) as incidents:
        if is_live:
            _show_live(each())
            return
        for update in each():
            click.echo(json_text(update_json(update)) if as_json else update_text(update))


def update_json(update: Update) -> dict[str, object]:
    """Return an update as plain JSON values; an unknown rate is null."""
    overview, conflicts = update
    rate = None if isinstance(conflicts, str) else round(conflicts, 3)
    return overview.as_json() | {"conflicts_per_second": rate}


def update_text(update: Update) -> str:
    """Return an update as plain text."""
    overview, _ = update
    rows = [row_of(lock, overview.at) for lock in overview.oldest]
    parts = [
        _headline(update),
        columns(NODE_HEADER, [node_row(status) for status in overview.statuses]),
        columns(LOCK_HEADER, rows) if rows else "no locks",
    ]
    return "\n\n".join(parts) + "\n"


def _headline(update: Update) -> str:
    overview, conflicts = update
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(overview.counts.items()))
    clock = time.strftime("%H:%M:%S", time.localtime(overview.at))
    votes = f"{overview.votes} of {len(overview.statuses)} vote, {overview.needed} needed"
    rate = conflicts if isinstance(conflicts, str) else f"{conflicts:.1f} per second"
    missed = [
        visible(f"{tick.entry} {tick.slot} ({seconds(overview.at - tick.at)} ago)")
        for tick in overview.missed[:_MOST_MISSED]
    ]
    lines = [f"{clock}  {votes}; locks: {counts or 'none'}", f"conflicts: {rate}"]
    if missed:
        lines.append(f"ticks missed in the last day: {', '.join(missed)}")
    return "\n".join(lines)


def _show_live(updates: Iterator[Update]) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise click.ClickException(
            "top needs rich on a terminal: pip install 'celery-redlock[top]'"
        ) from None
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for update in updates:
            live.update(rendered(update), refresh=True)


def rendered(update: Update) -> RenderableType:
    """Return an update as rich renders it."""
    from rich.console import Group
    from rich.text import Text

    overview, _ = update
    return Group(
        Text(_headline(update)),
        "",
        _table(NODE_HEADER, [node_row(status) for status in overview.statuses]),
        "",
        _table(LOCK_HEADER, [row_of(lock, overview.at) for lock in overview.oldest]),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*map(Text.from_ansi, row))
    return table
