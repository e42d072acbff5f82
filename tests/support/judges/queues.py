"""What waits in the broker, seen and changed by somebody who is no Celery."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from celery import Celery

_GIVEN_UP_S = 10
"""A connection that has not waited for a message for so long does not take any more."""


class Queues:
    """The queues of a project, whose own is `queue`."""

    app: Celery
    queue: str

    def queue_length(self, queue: str | None = None) -> int:
        """Return how many messages wait in the broker, in `queue` or the project's own."""
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            try:
                declared = channel.queue_declare(queue or self.queue, passive=True)
            except connection.channel_errors:  # with Redis, an empty queue does not exist
                return 0
        return int(declared.message_count)

    def messages(self, queue: str | None = None) -> list[dict[str, Any]]:
        """Return the messages that wait, oldest first; a Redis broker only."""
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            newest_first = channel.client.lrange(queue or self.queue, 0, -1)
        return [json.loads(one) for one in newest_first[::-1]]

    def deliver_again(self, queue: str) -> None:
        """Add a copy of the one message in `queue`, as a Redis broker does once it is late."""
        [message] = self.messages(queue)
        message["headers"]["redelivered"] = True
        message["properties"]["delivery_info"]["redelivered"] = True
        message["properties"]["delivery_tag"] = secrets.token_hex(16)
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            channel.client.lpush(queue, json.dumps(message))

    def unacked(self) -> int:
        """Return how many messages are delivered and not acknowledged; a Redis broker only."""
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            return int(channel.client.hlen(channel.unacked_key))

    def is_settled(self) -> bool:
        """Tell whether no message waits or is delivered, at one moment; a Redis broker only."""
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            look = channel.client.pipeline()
            for priority in channel.priority_steps:
                look.llen(channel._q_for_pri(self.queue, priority))
            look.hlen(channel.unacked_key)
            look.client_list()
            *counts, clients = look.execute()
        return not any(counts) and not is_taking(clients)

    def redeliver(self) -> None:
        """Have a Redis broker deliver again what is not acknowledged, its runs going on.

        As it does when a message was under way for longer than its `visibility_timeout`.
        """
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            channel.visibility_timeout = 0
            channel.qos.restore_visible(num=1000)

    def redeliver_what_is_late(self) -> None:
        """Have a Redis broker look now for what was under way for longer than it may.

        A worker does so once in about a hundred seconds.
        """
        with self.app.connection_for_write() as connection:
            channel: Any = connection.default_channel
            channel.qos.restore_visible(num=1000)

    def _delete_queue(self) -> None:
        with self.app.connection_for_write() as connection, suppress(*connection.channel_errors):
            channel: Any = connection.default_channel
            channel.queue_delete(self.queue)
            for exchange in (self.queue, f"{self.queue}.pidbox", f"reply.{self.queue}.pidbox"):
                channel.exchange_delete(exchange)


def is_taking(clients: Iterable[Mapping[str, str]]) -> bool:
    """Tell from a Redis broker's list of clients whether one may just have taken a message.

    A worker takes a message off the queue, and notes then that it has it, on another connection. On
    a busy machine the message is in neither place for long. Meanwhile the worker does not wait for
    the next one.
    """
    return any(
        one["cmd"] == "brpop" and "b" not in one["flags"] and int(one["idle"]) < _GIVEN_UP_S
        for one in clients
    )
