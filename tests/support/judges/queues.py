"""What waits in the broker, seen and changed by somebody who is no Celery."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from typing import Any

from celery import Celery


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
