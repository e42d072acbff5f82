"""`reschedule`: applies at once; also to any other policy but `raise` when the lock is contended.

The message is published again, to run later: its state is RETRY until then.
"""

from __future__ import annotations

from typing import NoReturn

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.execution.pauses import pause_after
from celery_redlock.redlock.errors import LockHeld

from . import skip


def apply(message: Message, held: LockHeld) -> NoReturn:
    """Requeue the message; skip an eager one, which has no queue, after its wait."""
    if message.request.is_eager:
        skip.apply(message, held, becomes=OnConflict.RESCHEDULE)
    outcomes.announce(message, held, OnConflict.RESCHEDULE.value)
    pause = pause_after(held, message.options.ttl)
    outcomes.reschedule(message, held, pause, message.renew_pending_slot(pause))
