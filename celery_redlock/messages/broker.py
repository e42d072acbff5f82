"""Publication of a message at different brokers: confirmation, timeouts and delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from amqp.exceptions import MessageNacked
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.exceptions import OperationalError
from kombu.pools import producers

T = TypeVar("T")

ANSWER_WITHIN_S = 10.0
"""After this long without a reply the connection is closed, and the message published again.

A broker that is frozen, or RabbitMQ under a resource alarm, keeps connections open without replies.
"""
_VISIBILITY_TIMEOUT_S = 3600.0
"""Default of a Redis broker; others name theirs. Source: kombu, transport/redis.py."""
_PATIENTLY: dict[str, Any] = {
    "retry": True,
    "retry_policy": {
        "max_retries": 60, "interval_start": 0.0, "interval_step": 0.2, "interval_max": 1.0,
    },
}  # fmt: skip
"""Retries for about a minute while the broker refuses, ten while it is silent. Celery's own policy
gives up in less than a second, or after four times `ANSWER_WITHIN_S`."""


@contextmanager
def confirming_producer(app: Any) -> Iterator[Any]:
    """Yield a producer that raises unless the broker has the message; None: any producer does.

    By default RabbitMQ confirms nothing, so a message is lost unnoticed if the connection breaks
    after the write. Other brokers reply. The wait for RabbitMQ and for Redis is bounded.
    """
    connection = app.connection_for_write()
    demanded, defaults = _options(connection.get_transport_cls().driver_type)
    if not defaults:
        yield None
        return
    # Kombu has a pool of producers for each set of options, and closes it after a fork.
    connection.transport_options = {
        **defaults, **(connection.transport_options or {}), **demanded
    }  # fmt: skip
    with producers[connection].acquire(block=True) as producer:
        yield producer


def publish_confirmed(app: Any, publish: Callable[..., T], *, is_patient: bool) -> T:
    """Return `publish(producer, **options)` for a message that a worker publishes in an execution.

    Kombu's Redis transport may try again on a channel that was closed with the broken connection.
    That is an AttributeError, so kombu does not try any further; with a new connection it works.

    Args:
        app: The app.
        publish: Publishes the message, with a producer as of `confirming_producer`, and with
            options of `apply_async`.
        is_patient: Whether to try for about a minute, though the worker is blocked meanwhile: for a
            message that would be lost, or that the broker counts.
    """
    options = {"confirm_timeout": ANSWER_WITHIN_S, **(_PATIENTLY if is_patient else {})}
    with confirming_producer(app) as producer:
        try:
            return publish(producer, **options)
        except AttributeError:
            if producer is None:
                raise
            producer.connection.collect()
    with confirming_producer(app) as producer:
        return publish(producer, **options)


def _options(driver_type: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the transport options of a worker's publications: those fixed, and the defaults."""
    match driver_type:
        case "amqp":
            bounds = {"read_timeout": ANSWER_WITHIN_S, "write_timeout": ANSWER_WITHIN_S}
            return {"confirm_publish": True}, bounds
        case "redis":
            names = ("socket_timeout", "socket_connect_timeout")
            return {}, dict.fromkeys(names, ANSWER_WITHIN_S)
    return {}, {}


def is_refusal(app: Any, error: object) -> bool:
    """Return whether a publication failed because of the broker, not because of the message."""
    connection = app.connection_for_write()
    errors = (*connection.connection_errors, *connection.channel_errors)
    return isinstance(error, (OperationalError, MessageNacked, *errors))


def may_delay(app: Any) -> bool:
    """Return whether the broker may delay a message until its eta: RabbitMQ with quorum queues."""
    driver_type = app.connection_for_write().get_transport_cls().driver_type
    return bool(detect_quorum_queues(app, driver_type)[0])


def visibility_timeout(app: Any) -> float:
    """Return after how long the broker delivers an unacknowledged message again, in seconds."""
    options = app.conf.broker_transport_options
    channel = getattr(app.connection_for_read().get_transport_cls(), "Channel", None)
    default = getattr(channel, "default_visibility_timeout", _VISIBILITY_TIMEOUT_S)
    return float(options.get("visibility_timeout", default))
