"""The command ``celery -A proj redlock web``."""

from __future__ import annotations

import click

from .command_line import other_command
from .parameters import Address
from .target import target_of


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8790, show_default=True,
    help="Port; 0 for any that is free.",
)  # fmt: skip
@click.option(
    "--token",
    envvar="REDLOCK_WEB_TOKEN",
    help="Token to log in with: who has it may release locks and end runs. Better in the variable "
    "REDLOCK_WEB_TOKEN: other users of a machine can read a command line.",
)
@click.option(
    "--view-token",
    envvar="REDLOCK_WEB_VIEW_TOKEN",
    help="Another token to log in with: who has it may only look. Better in the variable "
    "REDLOCK_WEB_VIEW_TOKEN.",
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME",
    help="Name under which the page is reached, if it is not localhost; may be repeated.",
)  # fmt: skip
@click.option(
    "--trusted-proxy", metavar="ADDRESS", type=Address(),
    help="IP address of a proxy in front of the page, to believe its X-Forwarded-Proto.",
)  # fmt: skip
@click.pass_context
def web(
    ctx: click.Context,
    *,
    host: str,
    port: int,
    token: str | None,
    view_token: str | None,
    hosts: tuple[str, ...],
    trusted_proxy: str | None,
) -> None:
    """Serve a page with nodes, locks, conflicts and beat's ticks.

    Without a token it shows and changes nothing, and only this machine reaches it.
    """
    try:
        from celery_redlock.web.guard import Access
        from celery_redlock.web.page import new_page
        from celery_redlock.web.server import listen, serve, url_of
    except ImportError as error:
        raise click.ClickException(
            f"web needs Flask and waitress ({error}): pip install 'celery-redlock[web]'"
        ) from None
    from celery_redlock.operate.incidents import Incidents

    target = target_of(ctx)
    target.nodes()  # says now if a URL is not valid
    listener = listen(host, port, [one for one in (token, view_token) if one is not None])
    incidents = Incidents(target.app) if target.app is not None else None
    cookie = f"redlock_{listener.getsockname()[1]}"
    access = Access(token, hosts, view_token)
    page = new_page(target, access, incidents, cookie=cookie, command=other_command())
    if incidents is not None:
        incidents.start()
    click.echo(f"The page is at {url_of(listener)} (Ctrl-C ends it).")
    serve(page, listener, trusted_proxy)
