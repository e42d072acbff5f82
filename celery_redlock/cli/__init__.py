"""The command ``celery -A proj redlock …``, a file per subcommand.

Celery loads it for each of its own commands: what is dear to import, a subcommand imports when run.
"""

from __future__ import annotations

import click
from celery.bin.base import handle_preload_options

from celery_redlock.config.redaction import hide_nodes
from celery_redlock.worker import control  # noqa: F401  # registers commands of inspect and control

from .admit import admit
from .beat_alive import beat_alive
from .doctor import doctor
from .end import end
from .list_ import list_
from .log import log
from .release import release
from .show import show
from .status import status
from .target import RedlockGroup
from .top import top
from .web import web

# A report on an app without our tasks needs it as well.
hide_nodes()

WITHOUT_APP = (status, list_, show, release, admit, log, doctor, top, web)
"""Commands that need no app."""


@click.group(name="redlock", cls=RedlockGroup)
@click.pass_context
@handle_preload_options
def redlock(ctx: click.Context) -> None:
    """Look after singleton tasks and their locks."""


for command in (*WITHOUT_APP, end, beat_alive):
    redlock.add_command(command)
