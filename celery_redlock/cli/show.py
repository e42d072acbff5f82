"""The command ``celery -A proj redlock show``."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from celery_redlock.units import count, seconds

from .parameters import TEXT
from .target import as_json, target_of
from .text import columns, document, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_redlock.operate.lock_view import LockView
    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.target import Target

_HEADER = ("NODE", "HOLDER", "EXPIRES IN", "FLOOR")


def json_of(kind: type[Any]) -> Callable[[click.Context, click.Parameter, str], Any]:
    """Return the callback of an option that is JSON of a type."""

    def parse(_ctx: click.Context, _option: click.Parameter, value: str) -> Any:
        try:
            parsed = json.loads(value)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not JSON: {error}") from error
        if not isinstance(parsed, kind):
            raise click.BadParameter(f"{value!r} is not a JSON {kind.__name__}")
        return parsed

    return parse


@click.command()
@click.argument("key", type=TEXT, required=False)
@click.option("--task", help="Name of a task, instead of a key; with an app only.")
@click.option("--args", callback=json_of(list), default="[]", help="Its arguments, as a JSON list.")
@click.option("--kwargs", callback=json_of(dict), default="{}", help="The same by name, as JSON.")
@as_json
@click.pass_context
def show(
    ctx: click.Context,
    *,
    key: str | None,
    task: str | None,
    args: list[Any],
    kwargs: dict[str, Any],
    as_json: bool,
) -> None:
    """Show all that the nodes store under a key, and what a new call would get.

    KEY is as in `list`. With --task the key is computed as the app does.
    Exits with 1 if fewer nodes than a quorum answer.
    """
    from celery_redlock.operate.lock_view import look_closely

    target = target_of(ctx)
    if (key is None) == (task is None):
        raise click.UsageError("Give a KEY, or --task with its arguments.")
    key = key_in(target, key) if key is not None else _key_of(target, str(task), args, kwargs)
    view, then = look_closely(target, key)
    if as_json:
        click.echo(document(view.as_json(time.time(), then)))
    else:
        click.echo(view_text(view, time.time()))
        click.echo(f"\nA new call now: {visible(then)}.")
    ctx.exit(0 if view.answers >= target.quorum else 1)


def key_in(target: Target, given: str) -> str:
    """Return the key of a lock in what was typed: the key, or the Redis key."""
    start = f"{target.key_prefix}:{{"
    return given[len(start) :].rpartition("}")[0] if given.startswith(start) else given


def _key_of(target: Target, task: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    if target.app is None:
        raise click.UsageError("--task needs an app: celery -A proj redlock show --task …")
    from celery_redlock.operate.tasks import key_of_call

    return key_of_call(target.app, task, args, kwargs)


def view_text(view: LockView, now: float) -> str:
    """Return each node's view, and what they come to."""
    rows = []
    for row in view.rows:
        holder = click.style(visible(row.error), fg="red") if row.error else visible(row.holder)
        rows.append((row.node, holder, *row[3:]))
    lines = [
        visible(view.key),
        "",
        columns(_HEADER, rows),
        "",
        f"lock:          {lock_text(view.lock, now)}",
        f"pending slot:  {lock_text(view.pending, now)}",
        f"done marks:    {count(len(view.marks), 'mark')}",
    ]
    marks = [
        f"  {visible(mark.owner)}, for another {seconds(mark.remaining)}" for mark in view.marks
    ]
    return "\n".join([*lines, *marks])


def lock_text(lock: Lock | None, now: float) -> str:
    """Return a lock in one line."""
    if lock is None:
        return "free"
    who = visible(lock.holder("unknown"))
    age = lock.age(now)
    since = "" if age is None else f" for {seconds(age)}"
    token = f", token {lock.token}" if lock.token else ""
    return (
        f"{lock.kind.value} by {who}{since}, on {lock.votes} of {lock.nodes} nodes{token} "
        f"(id {lock.id})"
    )
