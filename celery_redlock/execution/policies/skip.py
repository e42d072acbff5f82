"""`skip`: applies at once, and is the default.

The message ends as REVOKED, without a run: `get()` raises `DuplicateTask`.
"""

from __future__ import annotations

from typing import NoReturn

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.redlock.errors import LockHeld


def apply(message: Message, held: LockHeld, becomes: OnConflict = OnConflict.SKIP) -> NoReturn:
    """End the execution as REVOKED, announced as `becomes`."""
    outcomes.announce(message, held, becomes.value)
    message.release_reservation()
    outcomes.store_skipped(message, held)
