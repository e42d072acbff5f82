"""`complete`: applies at once, for callers and canvases that accept a fixed result.

The message ends as SUCCESS, without a run: its result is `lock_conflict_result`.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.redlock.errors import LockHeld


def apply(message: Message, held: LockHeld) -> Any:
    """Return the result that the task declares for conflicts."""
    outcomes.announce(message, held, OnConflict.COMPLETE.value)
    message.release_reservation()
    return message.options.conflict_result
