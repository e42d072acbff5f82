"""The command ``celery -A proj redlock beat-alive``."""

from __future__ import annotations

from typing import Any

import click
from celery.bin.base import CeleryCommand

from .parameters import Seconds


@click.command(name="beat-alive", cls=CeleryCommand)
@click.option(
    "--max-age",
    type=Seconds(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Oldest tick that counts as alive, in seconds; beat ticks every 10 s at least.",
)
@click.pass_context
def beat_alive(ctx: click.Context, max_age: float) -> None:
    """Exit with 0 if beat on this host has ticked lately, else with 1.

    Ticks don't count while the broker or the quorum keeps beat from publishing.
    """
    is_alive, words = _judged(ctx.obj.app, max_age)
    click.echo(words, err=not is_alive)
    ctx.exit(0 if is_alive else 1)


def _judged(app: Any, max_age: float) -> tuple[bool, str]:
    """Return whether beat is alive, and a sentence about its last tick."""
    from celery_redlock.beat import liveness

    age = liveness.age(app)
    if age is None:
        try:
            why = f"no {liveness.path_of(app)}"
        except FileNotFoundError as error:  # no folder for temporary files
            why = str(error)
        return False, f"beat has not ticked on this host: {why}"
    last = f"beat last ticked {age:.1f} s ago"
    if age > max_age:
        causes = "it hangs, has ended, or can't publish; its log names the reason"
        return False, f"{last}, more than {max_age:.1f} s: {causes}"
    return True, last
