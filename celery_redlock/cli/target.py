"""Target of a command, from Celery's context or from the options of ``celery-redlock``."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command_line import note_typed
from .parameters import TEXT
from .text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_redlock.operate.target import Target

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
takes_reason = click.option("--reason", type=TEXT, default="", help="Why, for `log` to show.")


def target_of(ctx: click.Context) -> Target:
    """Return the nodes that a command is about.

    Raises:
        UsageError: Neither an app nor a node is given.
        ConfigurationError: The settings of the app can't be used.
    """
    from celery_redlock.operate.target import Target, target_of_app

    if not isinstance(ctx.obj, Target):
        return target_of_app(ctx.obj.app)
    if not ctx.obj.urls:
        missing = "Missing option '--node', or the variable REDLOCK_NODES."
        raise click.UsageError(missing, ctx.parent)
    return ctx.obj


def say_left_out(errors: Mapping[str, str]) -> None:
    """Say on the standard error which nodes are left out, and why."""
    for node, error in errors.items():
        click.echo(visible(f"{node} is left out: {error}"), err=True)


def has_answers(target: Target, errors: Mapping[str, str]) -> bool:
    """Return whether a quorum has answered; say on the standard error if it has not.

    Args:
        target: The nodes.
        errors: Errors of those that have not answered.
    """
    total = len(target.urls)
    answers = total - len(errors)
    if answers < target.quorum:
        lacking = f"{answers} of {total} nodes answered, {target.quorum} are needed"
        click.echo(f"{lacking}: other locks may be held.", err=True)
    return answers >= target.quorum


class RedlockGroup(click.Group):
    """Group whose commands end with a message where the reader can help, not with a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand and its words, and note the command line for what it prints."""
        note_typed(ctx, [*args])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            ClickException: An error of this package, or a full disk.
        """
        from celery_redlock.redlock.errors import RedlockError

        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # it need not be UTF-8
                stream.reconfigure(errors="backslashreplace")
        if os.environ.get("NO_COLOR") or getattr(ctx.obj, "no_color", False):
            ctx.color = False  # inherited by the command's own context
        try:
            return super().invoke(ctx)
        except RedlockError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _drop_output()
            raise click.ClickException(f"the output can't be written: {error.strerror}") from error


def _drop_output() -> None:
    """Have the rest of the output go nowhere: Python tries once more as it ends."""
    with suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
