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
    from celery_redlock.beat import liveness

    app: Any = ctx.obj.app
    age = liveness.age(app)
    if age is None:
        try:
            why = f"no {liveness.path_of(app)}"
        except FileNotFoundError as error:  # no folder for temporary files
            why = str(error)
        click.echo(f"beat has not ticked on this host: {why}", err=True)
        ctx.exit(1)
    elif age > max_age:
        click.echo(
            f"beat last ticked {age:.1f} s ago, more than {max_age:.1f} s: it hangs, has ended, or "
            "can't publish; its log names the reason",
            err=True,
        )
        ctx.exit(1)
    else:
        click.echo(f"beat last ticked {age:.1f} s ago")
