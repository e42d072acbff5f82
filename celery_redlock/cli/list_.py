"""The command ``celery -A proj redlock list``."""

from __future__ import annotations

import itertools
import sys
import time
from typing import TYPE_CHECKING

import click

from celery_redlock.units import count

from .parameters import TEXT
from .target import as_json, has_answers, say_left_out, target_of
from .text import json_text, padded, visible, widths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.node_set import NodeSet
    from celery_redlock.operate.target import Target

_FIELDS = {
    "KIND": "kind", "HELD": "held", "EXPIRES IN": "expires_in", "VOTES": "votes",
    "HOLDER": "holder", "WORKER": "worker", "KEY": "key", "ARGUMENTS": "arguments",
}  # fmt: skip
"""Field of a lock's row by the column's name."""
KINDS = ("held", "reserved", "pending", "claim", "published", "missed", "done")
SHOWN = ("held", "reserved", "pending")
_SORTED = 1000
"""Locks that are kept for sorting; more are shown as they are found."""


@click.command(name="list")
@click.option(
    "--match", type=TEXT, default="*", show_default=True, help="Pattern of keys, as SCAN has it."
)
@click.option("--task", help="Name of the task.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS),
    help=f"What to list; may be repeated. By default {', '.join(SHOWN)}.",
)  # fmt: skip
@as_json
@click.pass_context
def list_(
    ctx: click.Context, *, match: str, task: str | None, kinds: tuple[str, ...], as_json: bool
) -> None:
    """List the locks: who holds which, since when, on how many nodes.

    Up to 1000 are sorted, the longest held first, then reservations. With --json each line is a
    document.
    Exits with 1 if fewer nodes than a quorum answer.
    """
    ctx.exit(0 if _list(target_of(ctx), match, task, kinds or SHOWN, as_json=as_json) else 1)


def _list(
    target: Target, match: str, task: str | None, kinds: tuple[str, ...], *, as_json: bool
) -> bool:
    """Print the locks; return whether a quorum has answered."""
    with target.nodes() as nodes:
        locks = _each(target, nodes, match, kinds)
        if task is not None:
            locks = (lock for lock in locks if lock.task == task)
        locks = _told(target, locks)
        total = _print_json(locks) if as_json else _print_text(locks, header_of(target))
        errors = nodes.errors
    say_left_out(errors)
    is_known = has_answers(target, errors)
    if task is not None and not total:
        say_doubt(target, task)
    return is_known


def _each(target: Target, nodes: NodeSet, match: str, kinds: tuple[str, ...]) -> Iterator[Lock]:
    """Yield the locks of the kinds that are asked for; show a progress bar on a terminal."""
    from celery_redlock.operate.listing import each_of

    if not sys.stderr.isatty():
        yield from each_of(nodes, target.key_prefix, kinds, match)
        return
    replies = nodes.ask([("DBSIZE",)])
    sizes = [one[0] for one in replies if isinstance(one, list) and isinstance(one[0], int)]
    # Done marks are found by a scan of their own.
    length = len({kind == "done" for kind in kinds}) * sum(sizes)
    with click.progressbar(length=length, file=sys.stderr, label="scanned") as bar:
        yield from each_of(nodes, target.key_prefix, kinds, match, bar.update)


def _told(target: Target, locks: Iterable[Lock]) -> Iterator[Lock]:
    """Yield locks with the executions that hold them; say on the standard error if none is known.

    The workers are asked once, as soon as the first locks, which are sorted, are found.
    """
    from celery_redlock.operate.locks import by_age
    from celery_redlock.operate.running import running_tasks

    each = iter(locks)
    first = sorted(itertools.islice(each, _SORTED), key=by_age)
    running = running_tasks(target, first)
    if running.problem:
        click.echo(visible(f"workers and processes are unknown: {running.problem}"), err=True)
    for lock in itertools.chain(first, each):
        running.tell((lock,))
        yield lock


def say_doubt(target: Target, task: str) -> None:
    """Say if a task without a lock is not one of the app: its name may be misspelt."""
    from celery_redlock.operate.tasks import doubt_about, singleton_tasks

    if target.app is not None and (doubt := doubt_about(task, singleton_tasks(target.app))):
        click.echo(visible(doubt), err=True)


def _print_json(locks: Iterable[Lock]) -> int:
    """Print locks as JSON; return how many."""
    now = time.time()
    return _print_lines(json_text(lock.as_json(now)) for lock in locks)


def _print_text(locks: Iterable[Lock], header: tuple[str, ...]) -> int:
    """Print locks as a table; return how many."""
    each = iter(locks)
    first = list(itertools.islice(each, _SORTED))
    now = time.time()
    table = [header, *(row_of(lock, now, header) for lock in first)]
    widths = widths_of(table)
    rows = itertools.chain(table, (row_of(lock, now, header) for lock in each))
    total = _print_lines(padded(row, widths) for row in rows) - 1
    click.echo(f"\n{count(total, 'lock')}.")
    return total


def _print_lines(lines: Iterator[str]) -> int:
    """Print lines, many at a time; return how many."""
    total = 0
    while some := list(itertools.islice(lines, _SORTED)):
        click.echo("\n".join(some))
        total += len(some)
    return total


def header_of(target: Target) -> tuple[str, ...]:
    """Return the names of the columns: without an app no worker can be asked."""
    left_out = set() if target.app else {"WORKER"}
    if not target.shows_arguments:
        left_out.add("ARGUMENTS")
    return tuple(name for name in _FIELDS if name not in left_out)


def row_of(lock: Lock, now: float, header: Iterable[str]) -> tuple[str, ...]:
    """Return the cells of a lock in a table."""
    row = lock.row(now)
    votes = row.votes if lock.has_majority else click.style(row.votes, fg="red")
    return tuple(
        votes if name == "VOTES" else visible(getattr(row, _FIELDS[name])) for name in header
    )
