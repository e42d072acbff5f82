"""The command ``celery -A proj redlock top``."""

from __future__ import annotations

import itertools
import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from .list_ import HEADER as LOCK_HEADER
from .list_ import row_of
from .status import HEADER as NODE_HEADER
from .status import node_row
from .target import as_json, target_of
from .text import columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from celery_redlock.operate.overview import Overview


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
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
    """Show nodes and the longest held locks, again and again, until Ctrl-C.

    On a terminal it is a live table, which needs rich; elsewhere plain text. With --json each line
    is a document.
    """
    from celery_redlock.operate.overview import read_overview

    target = target_of(ctx)
    is_live = sys.stdout.isatty() and not as_json

    def each() -> Iterator[Overview]:
        for number in itertools.count():
            if number:
                time.sleep(interval)
            yield read_overview(target, lines)
            if number + 1 == count:
                return

    with suppress(KeyboardInterrupt):
        if is_live:
            _show_live(each())
            return
        for overview in each():
            now = time.time()
            shown = json.dumps(overview.as_json(now)) if as_json else overview_text(overview, now)
            click.echo(shown)


def overview_text(overview: Overview, now: float) -> str:
    """Return an overview as plain text."""
    rows = [row_of(lock, now) for lock in overview.oldest]
    parts = [
        _headline(overview, now),
        columns(NODE_HEADER, [node_row(status) for status in overview.statuses]),
        columns(LOCK_HEADER, rows) if rows else "no locks",
    ]
    return "\n\n".join(parts) + "\n"


def _headline(overview: Overview, now: float) -> str:
    counts = ", ".join(f"{number} {kind}" for kind, number in sorted(overview.counts.items()))
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    votes = f"{overview.votes} of {len(overview.statuses)} vote, {overview.needed} needed"
    return f"{clock}  {votes}; locks: {counts or 'none'}"


def _show_live(overviews: Iterator[Overview]) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise click.ClickException(
            "top needs rich on a terminal: pip install 'celery-redlock[top]'"
        ) from None
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        for overview in overviews:
            live.update(_rendered(overview, time.time()), refresh=True)


def _rendered(overview: Overview, now: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(_headline(overview, now)),
        "",
        _table(NODE_HEADER, [node_row(status) for status in overview.statuses]),
        "",
        _table(LOCK_HEADER, [row_of(lock, now) for lock in overview.oldest]),
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
