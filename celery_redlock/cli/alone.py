"""The command ``celery-redlock``: the same commands, without an app."""

from __future__ import annotations

import click

from celery_redlock.config.settings import PREFIX, settings_from
from celery_redlock.operate.target import Target
from celery_redlock.redlock.defaults import (
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
)
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.validation import SHORTEST_S, SHORTEST_TTL_S

from . import WITHOUT_APP
from .parameters import TEXT, NodeUrl, Seconds
from .target import RedlockGroup


@click.group(name="celery-redlock", cls=RedlockGroup)
@click.option(
    "--node",
    "nodes",
    type=NodeUrl(),
    multiple=True,
    envvar="REDLOCK_NODES",
    help="URL of a node; once for each. Or in the variable REDLOCK_NODES, with spaces or commas "
    "between them: other users of a machine see the passwords in a command line.",
)
@click.option(
    "--key-prefix", type=TEXT, default=KEY_PREFIX, show_default=True, help="redlock_key_prefix."
)
@click.option(
    "--node-timeout",
    type=Seconds(min=SHORTEST_S),
    default=NODE_TIMEOUT_S,
    show_default=True,
    help="redlock_node_timeout, in seconds.",
)
@click.option(
    "--max-ttl",
    type=Seconds(min=SHORTEST_TTL_S),
    default=MAX_TTL_S,
    show_default=True,
    help="redlock_max_ttl, in seconds: it sets the restart guard.",
)
@click.option(
    "--max-clock-skew",
    type=Seconds(min=0),
    default=MAX_CLOCK_SKEW_S,
    show_default=True,
    help="redlock_max_clock_skew, in seconds: it sets the restart guard, too.",
)
@click.option(
    "--restart-guard/--no-restart-guard",
    default=None,
    help="redlock_restart_guard; by default with 3 nodes and more.",
)
@click.pass_context
def main(ctx: click.Context, /, **given: object) -> None:
    """Look after locks and their nodes, without an app.

    Give the options that the users of the nodes have as settings.
    """
    given["nodes"] = given["nodes"] or None  # some words need none
    conf = {f"{PREFIX}{name}": value for name, value in given.items()}
    try:
        settings = settings_from(conf, needs_nodes=False)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    ctx.obj = Target(
        settings.nodes, settings.key_prefix, settings.node_timeout, settings.max_ttl,
        settings.max_clock_skew, settings.restart_guard,
    )  # fmt: skip


for command in WITHOUT_APP:
    main.add_command(command)
