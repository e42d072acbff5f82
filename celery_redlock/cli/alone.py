"""The command ``celery-redlock``: the same commands, without an app."""

from __future__ import annotations

import click

from celery_redlock.operate.target import Target
from celery_redlock.redlock.defaults import (
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
)

from . import WITHOUT_APP
from .parameters import TEXT, Seconds
from .target import RedlockGroup

_SECONDS = Seconds(min=0, min_open=True)


@click.group(name="celery-redlock", cls=RedlockGroup)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    envvar="REDLOCK_NODES",
    help="URL of a node; once for each. Or in the variable REDLOCK_NODES, with spaces between "
    "them: other users of a machine see the passwords in a command line.",
)
@click.option(
    "--key-prefix", type=TEXT, default=KEY_PREFIX, show_default=True, help="redlock_key_prefix."
)
@click.option(
    "--node-timeout",
    type=_SECONDS,
    default=NODE_TIMEOUT_S,
    show_default=True,
    help="redlock_node_timeout, in seconds.",
)
@click.option(
    "--max-ttl",
    type=_SECONDS,
    default=MAX_TTL_S,
    show_default=True,
    help="redlock_max_ttl, in seconds: it sets the restart guard.",
)
@click.option(
    "--restart-guard/--no-restart-guard",
    default=None,
    help="redlock_restart_guard; by default with 3 nodes and more.",
)
@click.pass_context
def main(
    ctx: click.Context,
    *,
    nodes: tuple[str, ...],
    key_prefix: str,
    node_timeout: float,
    max_ttl: float,
    restart_guard: bool | None,
) -> None:
    """Look after locks and their nodes, without an app.

    Give the options that the users of the nodes have as settings.
    """
    ctx.obj = Target(nodes, key_prefix, node_timeout, max_ttl, MAX_CLOCK_SKEW_S, restart_guard)


for command in WITHOUT_APP:
    main.add_command(command)
