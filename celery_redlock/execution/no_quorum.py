"""Outcomes of an execution without a quorum, by `lock_on_unavailable`."""

from __future__ import annotations

import logging
from typing import Any

from celery_redlock.config.options import OnUnavailable
from celery_redlock.messages.headers import is_copy
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.signals import lock_unavailable
from celery_redlock.throttled_log import ThrottledLog

from . import outcomes
from .message import Message
from .monitors import send_event

logger = logging.getLogger(__name__)
_no_quorum = ThrottledLog()
_PAUSE_S = 5.0
"""How long a message without a quorum is requeued for, in seconds."""


def end(message: Message, error: QuorumUnavailable) -> Any:
    """End an execution without a quorum, or run its body without a lock: the policy `run`."""
    policy = message.options.on_unavailable
    is_parked = is_copy(message.request) and policy is not OnUnavailable.RUN
    _announce(message, error, "parked" if is_parked else policy.value)
    if is_parked:
        # The first copy may be running, or have ended: without a quorum neither is known.
        outcomes.park(message, error, _PAUSE_S)
    if policy is OnUnavailable.RUN:
        message.release_reservation()
        return message.body(None)
    if policy is OnUnavailable.RAISE or message.request.is_eager:
        message.release_reservation()
        raise error
    return outcomes.reschedule(message, error, _PAUSE_S, message.renew_pending_slot(_PAUSE_S))


def _announce(message: Message, error: QuorumUnavailable, becomes: str) -> None:
    """Log that there is no quorum, throttled, and send it to signal receivers and monitors."""
    logger.log(
        _no_quorum.occurred(logging.ERROR),
        "no quorum key=%s task=%s task_id=%s becomes=%s count=%d error=%s",
        error.key, message.task.name, message.request.id, becomes, _no_quorum.count, error,
    )  # fmt: skip
    task, request = message.task, message.request
    lock_unavailable.send(sender=task, task_id=request.id, error=error, becomes=becomes)
    send_event(task, request, "task-lock-unavailable", key=error.key, becomes=becomes)


def announce_over() -> None:
    """Log once that the quorum is back."""
    if count := _no_quorum.ended():
        logger.warning("quorum is back count=%d", count)
