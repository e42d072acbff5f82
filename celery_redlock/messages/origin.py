"""Origin of a message: the queue that the worker received it from, by an exchange with a name.

Such an exchange may have delivered copies to other queues, too. What is published to it again comes
to all of them, and each of those messages would be published again in its turn.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu import Queue
from kombu.transport.virtual.exchange import TopicExchange

if TYPE_CHECKING:
    from celery.app.task import Context

ORIGIN = "redlock_origin"
"""Attribute of a request with the origin of its message."""
_pattern_of = TopicExchange(None).key_to_pattern


class Origin(NamedTuple):
    """Origin of a message that an exchange with a name has delivered.

    No publisher can send one: the header of a message is a plain list.

    Attributes:
        queue: Name of the queue; '': the broker keeps no queue, as Redis for a fanout exchange.
        broadcast_to: Name of the receiver, if the exchange is a fanout: each has a copy. Else ''.
    """

    queue: str
    broadcast_to: str = ""

    def as_queue(self) -> Queue:
        """Return the queue as one to publish to: by its name, past the exchange."""
        return Queue(self.queue, routing_key=self.queue, no_declare=True)


def origin_of(request: Context) -> Origin | None:
    """Return the origin of a message; None: it was sent to its queue by name, or it is unknown."""
    origin = vars(request).get(ORIGIN)
    return origin if isinstance(origin, Origin) else None


def find_origin(consumer: Any, request: Any) -> Origin | None:
    """Return the origin of a message that a worker has just received; None: as `origin_of`.

    Args:
        consumer: Kombu's consumer of the worker's queues, or None.
        request: The worker's request.
    """
    if consumer is None:
        return None
    exchange, key = (request.delivery_info.get(name) for name in ("exchange", "routing_key"))
    if not exchange:
        return None
    queues = {str(queue.name): queue for queue in consumer.queues}
    tag = (request.message.delivery_info or {}).get("consumer_tag")
    if tag is not None:  # of AMQP; other transports don't tell
        tags = consumer._active_tags  # noqa: SLF001  # kombu has no other way from tag to queue
        name = next((name for name, active in tags.items() if active == tag), None)
        if name is None:
            return None
        is_fanout = name in queues and queues[name].exchange.type == "fanout"
        return Origin(name, name if is_fanout else "")
    for name, queue in queues.items():
        if is_bound(queue, exchange, str(key)):
            is_fanout = queue.exchange.type == "fanout"
            return Origin("", str(request.hostname)) if is_fanout else Origin(name)
    return None


def is_bound(queue: Queue, exchange: str, key: str) -> bool:
    """Return whether a queue is declared to get what an exchange is sent with a routing key."""
    if queue.exchange.name != exchange:
        return False
    match queue.exchange.type:
        case "fanout":
            return True
        case "topic":
            return re.match(_pattern_of(queue.routing_key), key) is not None
    return bool(queue.routing_key == key)
