"""`raise`: applies at once, for callers to whom a duplicate is an error.

The message ends as FAILURE, without a run: `get()` raises `LockHeld`.
"""

from __future__ import annotations

from typing import NoReturn

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.redlock.errors import LockHeld


def apply(message: Message, held: LockHeld) -> NoReturn:
    """Raise `held` as the task's own failure."""
    outcomes.announce(message, held, OnConflict.RAISE.value)
    message.release_reservation()
    raise held
