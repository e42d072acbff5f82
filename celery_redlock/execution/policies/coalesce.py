"""`coalesce`: applies at once, for tasks whose next run covers all earlier calls.

The message waits in its queue until the holder ends, or is skipped if another one waits already.
"""

from __future__ import annotations

from typing import Any

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import no_quorum, outcomes
from celery_redlock.execution.message import Message
from celery_redlock.execution.pauses import QUARTER, SHORTEST_S, pause_after
from celery_redlock.messages.headers import is_of
from celery_redlock.messages.reservation import Reservation
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable

from . import skip


def apply(message: Message, held: LockHeld) -> Any:
    """Reserve the pending slot and requeue the message, or skip it if the slot is reserved."""
    if message.request.is_eager:
        # An eager execution has no queue; it has waited in the body that called it.
        skip.apply(message, held, becomes=OnConflict.COALESCE)
    # If another message held the pending slot, its run begins about now. A key has one message that
    # waits, so it may look often.
    is_slot = held.key != message.key
    pause = SHORTEST_S if is_slot else pause_after(held, message.options.ttl, QUARTER)
    try:
        slot: Reservation | None = message.pending_slot(pause).reserve()
    except QuorumUnavailable as error:
        return no_quorum.end(message, error)
    except LockHeld as waiting:
        # Contended: no message is known to wait. The owner may even be an earlier one of this very
        # message, on a node that the renewals of its slot have not reached.
        if not waiting.contended:
            if is_of(waiting.owner, message.request):
                outcomes.end_copy(message)
            outcomes.announce(message, waiting, OnConflict.SKIP.value)
            outcomes.store_skipped(message, waiting)
        slot = None
    outcomes.announce(message, held, OnConflict.COALESCE.value)
    return outcomes.reschedule(message, held, pause, slot)
