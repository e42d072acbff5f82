"""Target of a command, from Celery's context or from the options of ``celery-redlock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from celery_redlock.operate.target import Target

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def target_of(ctx: click.Context) -> Target:
    """Return the nodes that a command is about.

    Raises:
        ConfigurationError: The settings of the app can't be used.
    """
    from celery_redlock.operate.target import Target, target_of_app

    return ctx.obj if isinstance(ctx.obj, Target) else target_of_app(ctx.obj.app)


class RedlockGroup(click.Group):
    """Group whose commands end with a message for an error of this package, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            ClickException: An error of this package.
        """
        from celery_redlock.redlock.errors import RedlockError

        try:
            return super().invoke(ctx)
        except RedlockError as error:
            raise click.ClickException(str(error)) from error
