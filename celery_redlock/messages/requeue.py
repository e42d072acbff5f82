"""Requeueing of a message: published again, with the same task id, arguments and publication."""

from __future__ import annotations

import logging
import math
import random
import re
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock.pools.pool_process import withdraw_attempts
from celery_redlock.redlock.errors import LeaseLost

from .broker import (
    how_to_publish,
    is_refusal,
    may_delay,
    publish_confirmed,
    visibility_timeout,
)
from .headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    CarriedNonce,
    deliveries_before,
    is_copy,
    is_counted_by_broker,
    is_flagged,
    publication_of,
    seconds_until,
    serializer_of,
)

if TYPE_CHECKING:
    from celery import Celery, Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_SHORTEST_S = 0.1
_SHORTEST_IN_BROKER_S = 1.0
_BEFORE_EXPIRY_S = 1.0
_DELAY = re.compile(r"(?:[01]\.){28}")
"""Start of the routing key of a message that RabbitMQ has delayed: the delay in binary.
Source: kombu.transport.native_delayed_delivery."""


def requeue_message(
    task: Task[Any, Any],
    request: Context,
    after: float,
    headers: dict[str, Any],
    *,
    expires: Any,
) -> float:
    """Requeue a message, to be executed in about `after` seconds, and return the countdown.

    Args:
        task: Task of the message.
        request: Request of the message.
        after: Delay in seconds; the countdown differs from it by up to 10 %.
        headers: Headers to add to the message's own.
        expires: Expiry, as for `apply_async`; None: never.

    Raises:
        Reject: The message could not be published, and the delivered one comes again instead. Only
            for a task with ``acks_late``: otherwise the error of Celery.
    """
    countdown = _countdown(task.app, after, expires)
    # The broker's flag and count end with the message that is acknowledged for this one.
    known: dict[str, Any] = {COPY_HEADER: True} if is_copy(request) else {}
    known[PUBLICATION_HEADER] = CarriedNonce(publication_of(request))
    known[DELIVERIES_HEADER] = deliveries_before(request)
    headers = {**(request.headers or {}), **known, **headers}
    serializer: Any = serializer_of(request)
    # Of the call, which Celery before 5.7 forgets, and a task that ignores results stores none.
    given = vars(request).get("ignore_result")
    signature = task.signature_from_request(
        request,
        queue=queue_of(task.app, request),
        countdown=countdown,
        headers=headers,
        expires=expires,
        # As the caller gave them, perhaps to hide arguments from logs and monitors.
        argsrepr=request.get("argsrepr"),
        kwargsrepr=request.get("kwargsrepr"),
        **({"serializer": serializer} if serializer else {}),
        **({} if given is None else {"ignore_result": given}),
    )
    how = how_to_publish(is_patient=is_patient(task, request))
    try:
        publish_confirmed(
            task.app, lambda producer: signature.apply_async(producer=producer, **how)
        )
    except Exception as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise
    # From now on, the message holds the reservation.
    withdraw_attempts()
    return countdown


def is_patient(task: Task[Any, Any], request: Context) -> bool:
    """Return whether a publication in this execution is to be attempted for about a minute.

    A message that is acknowledged early is lost if it is not published. And where the broker counts
    deliveries, each return to the queue brings the message nearer to its limit.
    """
    return not task.acks_late or is_counted_by_broker(request)


def ending_of_failed_retry(task: Task[Any, Any], rejected: Reject) -> BaseException:
    """Return the exception to end a run with whose retry could not be published.

    Args:
        task: Task of the run.
        rejected: Celery's exception, which drops the message from the queue.

    Returns:
        A Reject that requeues the delivered message, if the broker failed and the message is not
        acknowledged yet. Or the exception that interrupted the publication. Or `rejected`.
    """
    reason: Any = rejected.reason  # type: ignore[attr-defined]
    if isinstance(reason, LeaseLost | SoftTimeLimitExceeded):
        return reason
    if task.acks_late and is_refusal(task.app, reason):
        return Reject(reason, requeue=True)
    return rejected


def _countdown(app: Celery, after: float, expires: Any) -> float:
    countdown = min(after * random.uniform(0.9, 1.1), _longest_countdown(app))
    left = seconds_until(expires)
    longest = math.inf if left is None else left - _BEFORE_EXPIRY_S
    # A minimum also for a message about to expire: without a countdown it would come back at once.
    if may_delay(app):
        # The delay is in whole seconds, and Celery would cut off fractions.
        return max(_SHORTEST_IN_BROKER_S, math.floor(min(math.ceil(countdown), longest)))
    return max(_SHORTEST_S, min(countdown, longest))


def _longest_countdown(app: Celery) -> float:
    """Return how long a message may wait in a worker before the broker delivers it again."""
    return visibility_timeout(app) / 2


def queue_of(app: Any, request: Context) -> str | None:
    """Return the queue that a message came from, or None if Celery finds the queue by itself.

    For a message that the broker has delayed Celery does not: the exchange of delayed messages
    delivered it, with the delay in its routing key, and Celery would choose the default queue.
    """
    if not (request.delivery_info or {}).get("exchange") or not may_delay(app):
        return None
    queue = _origin(app, request)
    return str(queue.name) if queue else None


def _origin(app: Any, request: Context) -> Any:
    """Return the queue that a message came from, or None if the app does not declare it."""
    delivery = request.delivery_info or {}
    exchange, key = delivery.get("exchange"), str(delivery.get("routing_key"))
    if not exchange:
        return app.amqp.queues.get(key)
    is_delayed = _DELAY.match(key)
    if is_delayed:
        key = key[is_delayed.end() :]
    for queue in app.amqp.queues.values():
        if queue.routing_key == key and (is_delayed or queue.exchange.name == exchange):
            return queue
    return None


def bound_deliveries(task: Task[Any, Any], request: Context, limit: int) -> None:
    """Reject a message that was delivered too often, since it kills its process each time.

    RabbitMQ does so itself when a message of a quorum queue exceeds the queue's delivery limit, but
    its count starts again when a message is requeued. Other brokers don't count: there a
    redelivered message is requeued, with its count in a header.

    Args:
        task: Task of the message.
        request: Request of the message.
        limit: How often a message may be delivered again, unless its queue has a limit of its own;
            0: any number of times.

    Raises:
        Reject: The message was delivered too often: the broker makes it a dead letter, or drops it.
            Or as `requeue_message`.
        Ignore: The message was requeued.
    """
    # Without acks_late a message does not come again once it was started.
    if not task.acks_late or request.is_eager:
        return
    limit = _limit_of_queue(task.app, request) or limit
    if not limit:
        return
    count = deliveries_before(request)
    if count > limit:
        logger.error(
            "message delivered too often, rejected task=%s task_id=%s deliveries=%d limit=%d",
            task.name, request.id, count, limit,
        )  # fmt: skip
        raise Reject(f"delivered {count} times before")
    if is_flagged(request) and not is_counted_by_broker(request):
        headers = {COPY_HEADER: REDELIVERED}
        requeue_message(task, request, 0.0, headers, expires=request.expires)
        raise Ignore


def _limit_of_queue(app: Any, request: Context) -> int:
    queue = _origin(app, request)
    limit = (queue.queue_arguments or {}).get("x-delivery-limit") if queue else None
    return max(limit, 0) if isinstance(limit, int) else 0
