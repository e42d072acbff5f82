"""Conflict policies: one file for each, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import outcomes
from celery_redlock.execution.message import Message
from celery_redlock.execution.pauses import pause_after
from celery_redlock.messages.headers import is_of
from celery_redlock.messages.reservation import pending_slot_key
from celery_redlock.redlock.errors import LockHeld

from . import coalesce, complete, raise_, reschedule, skip, wait

_APPLY: dict[OnConflict, Callable[[Message, LockHeld], Any]] = {
    OnConflict.SKIP: skip.apply,
    OnConflict.COMPLETE: complete.apply,
    OnConflict.RAISE: raise_.apply,
    OnConflict.RESCHEDULE: reschedule.apply,
    OnConflict.WAIT: wait.apply,
    OnConflict.COALESCE: coalesce.apply,
}


def apply(message: Message, held: LockHeld) -> Any:
    """End an execution whose lock is held, by its task's policy.

    A message whose lock another copy of itself holds is parked, whatever the policy: if the holder
    dies, the parked copy has to run. A conflict over the pending slot is left to the policy.

    Returns:
        The task's result, from the policy `complete` alone. Every other outcome is an exception.
    """
    request, policy = message.request, message.options.on_conflict
    is_pending_slot = held.key == pending_slot_key(message.key)
    if is_of(held.owner, request) and not (is_pending_slot or request.is_eager):
        outcomes.announce(message, held, "parked")
        outcomes.park(message, held, pause_after(held, message.options.ttl))
    # Contended: no holder is known to run, so this message may not be skipped.
    if held.contended and policy is not OnConflict.RAISE:
        policy = OnConflict.RESCHEDULE
    return _APPLY[policy](message, held)
