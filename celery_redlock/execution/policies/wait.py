"""`wait`: applies after the message has waited in the worker for `lock_wait` and has no lock.

The message ends as with `skip`; if a shutdown has cut its wait short, as with `reschedule`.
"""

from __future__ import annotations

from typing import NoReturn

from celery_redlock.execution.message import Message
from celery_redlock.pools.pool_process import is_shutting_down
from celery_redlock.redlock.errors import LockHeld

from . import reschedule, skip


def apply(message: Message, held: LockHeld) -> NoReturn:
    """Skip the message; requeue it if the worker is being shut down."""
    if is_shutting_down() and not message.request.is_eager:
        reschedule.apply(message, held)
    skip.apply(message, held)
