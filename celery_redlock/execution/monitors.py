"""Events for monitors, such as Flower and `celery events`."""

from __future__ import annotations

import logging
from typing import Any

from celery_redlock.messages.delivery import Delivery
from celery_redlock.redlock.errors import shown

logger = logging.getLogger(__name__)


def send_event(delivery: Delivery, kind: str, **fields: Any) -> None:
    """Send monitors an event about an execution; an error is logged, and raises nothing.

    Args:
        delivery: Delivery that is executed; an eager execution sends no events.
        kind: Type of the event.
        **fields: Fields of the event, besides the task's id and name.
    """
    task, request = delivery.task, delivery.request
    if request.is_eager:
        return
    try:
        # With the name: a monitor that has not seen the message arrive knows only its id.
        task.send_event(kind, retry=False, name=task.name, **fields)
    except Exception:
        # A monitor that misses an event must not fail the task.
        logger.warning(
            "event not sent to monitors type=%s task_id=%s", kind, shown(request.id), exc_info=True
        )
