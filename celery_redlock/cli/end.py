"""The command ``celery -A proj redlock end``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from .command_line import confirming, other_command
from .key import key_on, takes_key
from .parameters import TEXT
from .show import lock_text
from .target import as_json, target_of
from .text import document, visible

if TYPE_CHECKING:
    from celery_redlock.operate.ending import Order
    from celery_redlock.operate.lock_view import LockView
    from celery_redlock.operate.locks import Lock
    from celery_redlock.operate.target import Target

    from .key import GivenKey


@click.command()
@takes_key
@click.option("--expect", "expected", help="End only the run of the holder with this id.")
@click.option("--reason", type=TEXT, default="", help="Why, for the task's error and the logs.")
@click.option(
    "--signal",
    type=click.Choice(["TERM", "KILL"]),
    default="TERM",
    show_default=True,
    help="Signal for a process of the prefork pool.",
)
@click.option("--yes", is_flag=True, help="End it; without it, only show what would happen.")
@as_json
@click.pass_context
def end(
    ctx: click.Context,
    *,
    given: GivenKey | None,
    expected: str | None,
    reason: str,
    signal: str,
    yes: bool,
    as_json: bool,
) -> None:
    """End the run that holds a lock, for good; `release` ends its lease instead.

    KEY is as in `list`. With --task the key is computed as the app does. Waits for some ten
    seconds until the run has ended. A worker of the solo pool can't end its run.
    Exits with 1 if the run goes on, or no run holds the lock.
    """
    from celery_redlock.operate.ending import Order
    from celery_redlock.operate.removal import operator

    target = target_of(ctx)
    order = Order(operator(), reason, signal)
    is_done = _end(target, key_on(target, given), expected, order, yes=yes, as_json=as_json)
    ctx.exit(0 if is_done else 1)


def _end(
    target: Target, key: str, expected: str | None, order: Order, *, yes: bool, as_json: bool
) -> bool:
    """End the run, with `yes` only, and print what became of it; return whether it did not fail."""
    from celery_redlock.operate.ending import CONSEQUENCE, Ending
    from celery_redlock.operate.ending import end as end_run
    from celery_redlock.operate.lock_view import view_of

    ending = None
    with target.nodes() as nodes:
        lock = _lock_in(view_of(nodes, target.key_prefix, key))
        if expected not in (None, lock.id):
            ending = Ending(f"Not ended: its id is not {expected}")
        if not as_json:
            click.echo(f"{visible(key)}: {lock_text(lock, time.time())}")
            click.echo(f"Consequence: {CONSEQUENCE}.\n")
        if yes and ending is None:
            ending = end_run(target, nodes, lock, order, time.sleep)
    if as_json:
        told = {"ended": bool(ending and ending.is_ended), "outcome": ending and ending.outcome}
        click.echo(document(told | {"consequence": CONSEQUENCE} | lock.as_json(time.time())))
    elif ending:
        click.echo(f"{visible(ending.outcome)}.")
    else:
        click.echo(f"Nothing was ended. To end it: {confirming(lock.id, expected)}")
    return ending is None or ending.is_ended


def _lock_in(view: LockView) -> Lock:
    """Return the lock that a run holds.

    Raises:
        ClickException: No run holds it.
    """
    from celery_redlock.operate.ending import held_by_nothing, run_in

    run, nothing = run_in(view), held_by_nothing(view)
    if not isinstance(run, str):
        return run
    if nothing is None:
        raise click.ClickException(f"no run to end under {view.key!r}: {run}")
    what, lock = nothing
    words = [*(["--done", lock.owner] if lock.kind.value == "done" else []), "--", lock.key]
    if not lock.key.startswith("-"):
        words.remove("--")
    raise click.ClickException(
        f"no run holds {view.key!r}, it is {what}: release it instead: "
        f"{other_command('release', *words)}"
    )
