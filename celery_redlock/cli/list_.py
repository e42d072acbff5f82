"""The command ``celery -A proj redlock list``."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import TYPE_CHECKING

import click

from celery_redlock.units import count, seconds

from .target import as_json, target_of
from .text import padded, widths_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.node_set import NodeSet
    from celery_redlock.operate.target import Target

HEADER = ("KIND", "HELD", "EXPIRES IN", "VOTES", "HOLDER", "KEY")
_KINDS = ("held", "reserved", "pending", "claim", "done")
_SHOWN = ("held", "reserved", "pending")
_SORTED = 1000
"""Locks that are kept for sorting; more are shown as they are found."""


@click.command(name="list")
@click.option("--match", default="*", show_default=True, help="Pattern of keys, as SCAN has it.")
@click.option("--task", help="Name of the task.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(_KINDS),
    help=f"What to list; may be repeated. By default {', '.join(_SHOWN)}.",
)  # fmt: skip
@as_json
@click.pass_context
def list_(
    ctx: click.Context, *, match: str, task: str | None, kinds: tuple[str, ...], as_json: bool
) -> None:
    """List the locks: who holds which, since when, on how many nodes.

    Up to 1000 are sorted, the longest held first. With --json each line is a document.
    Exits with 1 if fewer nodes than a quorum answer.
    """
    from celery_redlock.operate.node_set import NodeSet

    target = target_of(ctx)
    with NodeSet(target.urls, target.patience) as nodes:
        locks = _each(target, nodes, match, kinds or _SHOWN)
        if task is not None:
            locks = (lock for lock in locks if lock.task == task)
        if as_json:
            _print_json(locks)
        else:
            _print_text(locks)
        errors = nodes.errors
    for node, error in errors.items():
        click.echo(f"{node} is left out: {error}", err=True)
    ctx.exit(1 if len(nodes) - len(errors) < target.quorum else 0)


def _each(target: Target, nodes: NodeSet, match: str, kinds: tuple[str, ...]) -> Iterator[Lock]:
    """Yield the locks of the kinds that are asked for; show a progress bar on a terminal."""
    from celery_redlock.operate.listing import each_done_mark, each_lock

    if not sys.stderr.isatty():
        yield from _of_kinds(each_lock(nodes, target.key_prefix, match), kinds)
        if "done" in kinds:
            yield from each_done_mark(nodes, target.key_prefix, match)
        return
    replies = nodes.ask([("DBSIZE",)])
    sizes = [one[0] for one in replies if isinstance(one, list) and isinstance(one[0], int)]
    passes = (not {*kinds} <= {"done"}) + ("done" in kinds)
    with click.progressbar(length=passes * sum(sizes), file=sys.stderr, label="scanned") as bar:
        if passes > 1 or "done" not in kinds:
            yield from _of_kinds(each_lock(nodes, target.key_prefix, match, bar.update), kinds)
        if "done" in kinds:
            yield from each_done_mark(nodes, target.key_prefix, match, bar.update)


def _of_kinds(locks: Iterable[Lock], kinds: tuple[str, ...]) -> Iterator[Lock]:
    return (lock for lock in locks if lock.kind in kinds)


def _print_json(locks: Iterable[Lock]) -> None:
    now = time.time()
    encode = json.JSONEncoder(ensure_ascii=False).encode
    _print_lines(encode(lock.as_json(now)) for lock in locks)


def _print_text(locks: Iterable[Lock]) -> None:
    each = iter(locks)
    first = sorted(itertools.islice(each, _SORTED), key=lambda lock: (lock.token == 0, lock.token))
    now = time.time()
    table = [HEADER, *(row_of(lock, now) for lock in first)]
    widths = widths_of(table)
    rows = itertools.chain(table, (row_of(lock, now) for lock in each))
    total = _print_lines(padded(row, widths) for row in rows) - 1
    click.echo(f"\n{count(total, 'lock')}.")


def _print_lines(lines: Iterator[str]) -> int:
    """Print lines, many at a time; return how many."""
    total = 0
    while some := list(itertools.islice(lines, _SORTED)):
        click.echo("\n".join(some))
        total += len(some)
    return total


def row_of(lock: Lock, now: float) -> tuple[str, ...]:
    """Return the cells of a lock in a table."""
    votes = f"{lock.votes}/{lock.nodes}"
    task_id, host = lock.task_id or "-", lock.host
    return (
        lock.kind.value,
        seconds(lock.age(now)),
        seconds(lock.remaining),
        votes if lock.has_majority else click.style(votes, fg="red"),
        f"{task_id}@{host}" if host else task_id,
        lock.key,
    )
