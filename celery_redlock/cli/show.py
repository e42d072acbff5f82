"""The command ``celery -A proj redlock show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from celery_redlock.units import count, seconds

from .key import key_on, takes_key
from .target import as_json, target_of
from .text import columns, document, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_redlock.operate.lock_view import LockView
    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.target import Target

    from .key import GivenKey

_HEADER = ("NODE", "HOLDER", "EXPIRES IN", "FLOOR")


@click.command()
@takes_key
@as_json
@click.pass_context
def show(ctx: click.Context, *, given: GivenKey | None, as_json: bool) -> None:
    """Show all that the nodes store under a key, and what a new call would get.

    KEY is as in `list`. With --task the key is computed as the app does.
    Exits with 1 if fewer nodes than a quorum answer.
    """
    target = target_of(ctx)
    ctx.exit(0 if _show(target, key_on(target, given), as_json=as_json) else 1)


def _show(target: Target, key: str, *, as_json: bool) -> bool:
    """Print what is stored under a key; return whether a quorum has answered."""
    from celery_redlock.operate.lock_view import look_closely

    view, then = look_closely(target, key)
    if as_json:
        click.echo(document(view.as_json(time.time(), then)))
    else:
        click.echo(view_text(view, time.time(), _run_lines(target, view)))
        click.echo(f"\nA new call now: {visible(then)}.")
    return view.is_known


def view_text(view: LockView, now: float, run: Iterable[str] = ()) -> str:
    """Return each node's view, and what they come to; `run`: lines about the run that holds it."""
    rows = []
    for row in view.rows:
        holder = click.style(visible(row.error), fg="red") if row.error else visible(row.holder)
        rows.append((row.node, holder, *row[3:]))
    lines = [
        visible(view.key),
        "",
        columns(_HEADER, rows),
        "",
        f"lock:          {lock_text(view.lock, now) if view.lock else view.absence}",
        *run,
        f"pending slot:  {lock_text(view.pending, now) if view.pending else view.absence}",
        f"done marks:    {_count_of_marks(view)}",
    ]
    marks = [
        f"  {visible(mark.owner)}, for another {seconds(mark.remaining)}" for mark in view.marks
    ]
    return "\n".join([*lines, *marks])


def _run_lines(target: Target, view: LockView) -> Iterator[str]:
    """Yield what the workers tell of the run that holds the lock."""
    if target.app and view.worker:
        yield f"worker:        {visible(view.worker)}"
        if target.shows_arguments:
            yield f"arguments:     {visible(str(view.arguments))}"


def _count_of_marks(view: LockView) -> str:
    return count(len(view.marks), "mark") if view.marks or view.is_known else view.absence


def lock_text(lock: Lock, now: float) -> str:
    """Return a lock in one line."""
    who = visible(lock.holder("unknown"))
    age = lock.age(now)
    since = "" if age is None else f" for {seconds(age)}"
    token = f", token {lock.token}" if lock.token else ""
    return (
        f"{lock.kind.value} by {who}{since}, on {lock.votes} of {lock.nodes} nodes{token} "
        f"(id {lock.id})"
    )
