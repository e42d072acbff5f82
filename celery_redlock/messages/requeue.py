"""Requeueing of a message: published again, with the same task id, arguments and publication."""

from __future__ import annotations

import logging
import math
import random
import re
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock.pools.pool_process import withdraw_attempts
from celery_redlock.redlock.errors import LeaseLost, shown

from .broker import is_refusal, may_delay, publish_confirmed, visibility_timeout
from .delivery import Delivery
from .headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    CarriedNonce,
    headers_to_requeue,
    seconds_until,
    serializer_of,
)
from .origin import Origin, is_bound

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
    delivery: Delivery, after: float, headers: dict[str, Any], *, expires: Any
) -> float:
    """Requeue a message, to be executed in about `after` seconds, and return the countdown.

    Args:
        delivery: Delivery of the message.
        after: Delay in seconds; the countdown differs from it by up to 10 %.
        headers: Headers to add to the message's own.
        expires: Expiry, as for `apply_async`; None: never.

    Raises:
        Reject: The message could not be published, and the delivered one comes again instead. Only
            for a task with ``acks_late``: otherwise the error of Celery.
    """
    task, request = delivery.task, delivery.request
    countdown = _countdown(task.app, after, expires)
    # The broker's flag and count end with the message that is acknowledged for this one.
    known: dict[str, Any] = {COPY_HEADER: True} if delivery.is_copy else {}
    known[PUBLICATION_HEADER] = CarriedNonce(delivery.publication)
    known[DELIVERIES_HEADER] = delivery.deliveries_before
    headers = {**headers_to_requeue(request), **known, **headers}
    serializer: Any = serializer_of(request)
    # Of the call, which Celery before 5.7 forgets, and a task that ignores results stores none.
    given = vars(request).get("ignore_result")
    signature = task.signature_from_request(
        request,
        **route_back(delivery),
        countdown=countdown,
        headers=headers,
        expires=expires,
        # As the caller gave them, perhaps to hide arguments from logs and monitors.
        argsrepr=request.get("argsrepr"),
        kwargsrepr=request.get("kwargsrepr"),
        **({"serializer": serializer} if serializer else {}),
        **({} if given is None else {"ignore_result": given}),
    )
    try:
        publish_confirmed(
            task.app,
            lambda producer, **how: signature.apply_async(producer=producer, **how),
            is_patient=delivery.is_patient,
        )
    except Exception as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from error
        raise
    # From now on, the message holds the reservation.
    withdraw_attempts()
    return countdown


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
    # Longer, and the broker would deliver the message again while it waits in a worker.
    countdown = min(after * random.uniform(0.9, 1.1), visibility_timeout(app) / 2)
    left = seconds_until(expires)
    longest = math.inf if left is None else left - _BEFORE_EXPIRY_S
    # A minimum also for a message about to expire: without a countdown it would come back at once.
    if may_delay(app):
        # The delay is in whole seconds, and Celery would cut off fractions.
        return max(_SHORTEST_IN_BROKER_S, math.floor(min(math.ceil(countdown), longest)))
    return max(_SHORTEST_S, min(countdown, longest))


def route_back(delivery: Delivery) -> dict[str, Any]:
    """Return the options of `apply_async` that send a message to the queue that it came from.

    Empty if Celery finds the queue by itself. It would publish a message to the exchange that
    delivered it, or that its queue is bound to, which may deliver to other queues as well. The
    broker delays only what is published to an exchange, so there it is named by its queue, unless
    another queue would have a copy.
    """
    app, request, origin = delivery.task.app, delivery.request, delivery.origin
    queue = _declared_origin(app, request)
    is_alone = queue is not None and _is_alone(app, queue)
    if (request.delivery_info or {}).get("exchange"):
        if is_alone and may_delay(app):
            return {"queue": str(queue.name)}
    elif queue is not None and not is_alone:
        origin = Origin(str(queue.name))
    return {"queue": origin.as_queue(), "exchange": ""} if origin and origin.queue else {}


def _is_alone(app: Any, queue: Any) -> bool:
    """Return whether a message that Celery publishes for `queue` comes to no other queue."""
    exchange = queue.exchange
    if exchange.type in ("direct", "fanout"):  # to the one it publishes past the exchange
        return bool(exchange.type == "direct")
    bound = [
        one for one in app.amqp.queues.values() if is_bound(one, exchange.name, queue.routing_key)
    ]
    return bound == [queue]


def _declared_origin(app: Any, request: Context) -> Any:
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


def enforce_max_deliveries(delivery: Delivery, limit: int) -> None:
    """Reject a message that was delivered too often, since it kills its process each time.

    RabbitMQ does so itself when a message of a quorum queue exceeds the queue's delivery limit, but
    its count starts again when a message is requeued. Other brokers don't count: there a
    redelivered message is requeued, with its count in a header.

    Args:
        delivery: Delivery of the message.
        limit: How often a message may be delivered again, unless its queue has a limit of its own;
            0: any number of times.

    Raises:
        Reject: The message was delivered too often: the broker makes it a dead letter, or drops it.
            Or as `requeue_message`.
        Ignore: The message was requeued.
    """
    task, request = delivery.task, delivery.request
    # Without acks_late a message does not come again once it was started.
    if not task.acks_late or request.is_eager:
        return
    limit = _limit_of_queue(task.app, request) or limit
    if not limit:
        return
    count = delivery.deliveries_before
    if count > limit:
        logger.error(
            "message delivered too often, rejected task=%s task_id=%s deliveries=%d limit=%d",
            task.name, shown(request.id), count, limit,
        )  # fmt: skip
        raise Reject(f"delivered {count} times before")
    is_uncounted = delivery.is_flagged and not delivery.is_counted_by_broker
    if is_uncounted and delivery.can_be_requeued:
        requeue_message(delivery, 0.0, {COPY_HEADER: REDELIVERED}, expires=request.expires)
        raise Ignore


def _limit_of_queue(app: Any, request: Context) -> int:
    queue = _declared_origin(app, request)
    limit = (queue.queue_arguments or {}).get("x-delivery-limit") if queue else None
    return max(limit, 0) if isinstance(limit, int) else 0
