"""The command ``celery -A proj redlock top``."""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import click

from celery_redlock.units import seconds

from .list_ import KINDS, SHOWN, header_of, row_of
from .parameters import Seconds
from .status import HEADER as NODE_HEADER
from .status import node_row
from .target import as_json, target_of
from .text import Fit, columns, fitted, json_text, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from celery_redlock.operate.incidents import Incidents
    from celery_redlock.operate.overview import Overview
    from celery_redlock.operate.target import Target

_MOST_MISSED = 3
_NODES = Fit(
    shortened={"NODE": 16},
    dropped=("CONNECTIONS", "POLICY", "MEMORY", "ROLE", "SERVER", "CLOCK", "ROUND TRIP"),
)
_LOCKS = Fit(
    shortened={"HOLDER": 16, "ARGUMENTS": 16, "WORKER": 16, "KEY": 24},
    dropped=("ARGUMENTS", "HOLDER", "WORKER"),
)


class Update(NamedTuple):
    """What is shown at one moment.

    Attributes:
        overview: Nodes and locks.
        conflicts: Conflicts per second, or the reason why they are unknown.
        header: Columns of the locks.
        kinds: Kinds of locks that are shown.
    """

    overview: Overview
    conflicts: float | str
    header: Sequence[str]
    kinds: Sequence[str] = SHOWN


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
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice([one for one in KINDS if one != "done"]),
    help=f"What to show; may be repeated. By default {', '.join(SHOWN)}.",
)  # fmt: skip
@as_json
@click.pass_context
def top(
    ctx: click.Context,
    *,
    interval: float,
    count: int | None,
    lines: int,
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show nodes, conflicts and the longest held locks, again and again, until Ctrl-C.

    On a terminal it is a live table, which needs rich; elsewhere plain text. With --json each line
    is a document.
    """
    from celery_redlock.operate.incidents import Incidents

    target = target_of(ctx)
    with suppress(KeyboardInterrupt), Incidents(target.app) as incidents:
        updates = itertools.islice(_updates(target, incidents, interval, lines, kinds), count)
        _show(updates, as_json=as_json)


def _updates(
    target: Target, incidents: Incidents, interval: float, lines: int, kinds: Sequence[str]
) -> Iterator[Update]:
    """Yield updates without end, with a pause before each but the first."""
    from celery_redlock.operate.overview import read_overview
    from celery_redlock.operate.running import Watch

    shown, header, watch = kinds or SHOWN, header_of(target), Watch(target)
    while True:
        overview = read_overview(target, lines, lambda lock: lock.kind in shown, time.time)
        rate = incidents.conflict_rate(overview.at)
        problem = watch.tell(overview.oldest).problem
        yield Update(replace(overview, problem=problem), rate, header, shown)
        time.sleep(interval)


def _show(updates: Iterator[Update], *, as_json: bool) -> None:
    """Print updates, or show them on a terminal."""
    if sys.stdout.isatty() and not as_json:
        _show_live(updates)
        return
    for update in updates:
        click.echo(json_text(update_json(update)) if as_json else update_text(update))


def update_json(update: Update) -> dict[str, object]:
    """Return an update as plain JSON values; an unknown rate is null."""
    conflicts = update.conflicts
    rate = None if isinstance(conflicts, str) else round(conflicts, 3)
    return update.overview.as_json() | {"conflicts_per_second": rate}


def update_text(update: Update) -> str:
    """Return an update as plain text, as wide as it is."""
    nodes, locks = _tables(update)
    parts = [
        "\n".join(_head(update)),
        columns(NODE_HEADER, nodes),
        columns(update.header, locks) if locks else _no_locks(update),
    ]
    return "\n\n".join(parts) + "\n"


def screen(update: Update, width: int, height: int) -> list[str]:
    """Return an update as lines for a terminal, with no more of them than it has.

    State and time are never cut: what is long is shortened in the middle, the key last of all, and
    columns that tell less are left out.
    """
    nodes, locks = _tables(update)
    head = [
        *_head(update),
        "",
        *fitted(NODE_HEADER, nodes, width, _NODES),
        "",
    ]
    table = fitted(update.header, locks, width, _LOCKS) if locks else [_no_locks(update)]
    room = max(2, height - len(head))
    if len(table) > room:
        table[room - 1 :] = [f"… {len(table) - room + 1} more"]
    return (head + table)[:height]


def _no_locks(update: Update) -> str:
    return "locks are unknown" if update.overview.doubt else "no locks"


def _tables(update: Update) -> tuple[list[list[str]], list[tuple[str, ...]]]:
    overview = update.overview
    locks = [row_of(lock, overview.at, update.header) for lock in overview.oldest]
    return [node_row(status) for status in overview.statuses], locks


def _head(update: Update) -> list[str]:
    overview, conflicts = update.overview, update.conflicts
    counts = ", ".join(
        f"{number} {kind}" for kind, number in sorted(overview.counts.items())
        if kind in update.kinds
    )  # fmt: skip
    clock = time.strftime("%H:%M:%S", time.localtime(overview.at))
    votes = f"{overview.votes} of {len(overview.statuses)} vote, {overview.needed} needed"
    rate = conflicts if isinstance(conflicts, str) else f"{conflicts:.1f} per second"
    missed = [
        visible(f"{tick.entry} {tick.slot} ({seconds(overview.at - tick.at)} ago: {tick.why})")
        for tick in overview.missed[:_MOST_MISSED]
    ]
    none = "unknown" if overview.doubt else "none"
    lines = [f"{clock}  {votes}; locks: {counts or none}", f"conflicts: {rate}"]
    if overview.doubt:
        lines.append(visible(f"other locks may be held, and ticks missed: {overview.doubt}"))
    if overview.problem:
        lines.append(f"workers and processes are unknown: {overview.problem}")
    if missed:
        lines.append(f"ticks missed in the last day: {', '.join(missed)}")
    return lines


def _show_live(updates: Iterator[Update]) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise click.ClickException(
            "top needs rich on a terminal: pip install 'celery-redlock[top]'"
        ) from None
    has_color = click.get_current_context().color
    console = Console(no_color=has_color is False or None)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for update in updates:
            live.update(rendered(update, *live.console.size), refresh=True)


def rendered(update: Update, width: int, height: int) -> Text:
    """Return an update as rich renders it on a terminal of this size."""
    from rich.text import Text

    lines = "\n".join(screen(update, width, height))
    return Text.from_ansi(lines, no_wrap=True, overflow="ellipsis")
