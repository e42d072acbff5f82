"""What is told of executions without a quorum."""

from __future__ import annotations

import logging

from celery_redlock.redlock.errors import QuorumUnavailable, shown
from celery_redlock.signals import lock_unavailable
from celery_redlock.throttled_log import ThrottledLog

from .message import Message
from .monitors import send_event

logger = logging.getLogger(__name__)
_no_quorum = ThrottledLog()


def announce(message: Message, error: QuorumUnavailable, outcome: str) -> None:
    """Log that there is no quorum, throttled, and send it to signal receivers and monitors."""
    logger.log(
        _no_quorum.occurred(logging.ERROR),
        "no quorum key=%s task=%s task_id=%s outcome=%s count=%d error=%s",
        error.key, message.task.name, shown(message.request.id), outcome, _no_quorum.count, error,
    )  # fmt: skip
    task, request = message.task, message.request
    lock_unavailable.send(sender=task, task_id=request.id, error=error, outcome=outcome)
    send_event(message.delivery, "task-lock-unavailable", key=error.key, outcome=outcome)


def announce_over() -> None:
    """Log once that the quorum is back."""
    if count := _no_quorum.ended():
        logger.warning("quorum is back count=%d", count)
