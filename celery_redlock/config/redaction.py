"""Redaction of the passwords in the nodes' URLs where Celery shows its configuration.

`celery report`, `inspect conf`, Flower and `app.conf.table()` all use Celery's own filter, which
knows settings with secrets by their names. A value that hides itself is not enough: reports are
also sent as JSON.
"""

from __future__ import annotations

import re
from typing import Any

from celery.app import utils

_NODES = "REDLOCK_NODE(?!_TIMEOUT)"
"""Matches misspelt names, too: their value was meant for the setting."""


def hide_nodes() -> None:
    """Have Celery show ``********`` for `redlock_nodes`, in every app of this process."""
    celerys: Any = utils  # no stub knows the name
    hidden: re.Pattern[str] = celerys.HIDDEN_SETTINGS
    if _NODES not in hidden.pattern:
        celerys.HIDDEN_SETTINGS = re.compile(f"{hidden.pattern}|{_NODES}", hidden.flags)
