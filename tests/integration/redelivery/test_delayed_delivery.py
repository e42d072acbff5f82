"""A delayed message on its way between RabbitMQ's queues, as Celery sends it, without any lock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kombu import Connection, Exchange, Queue
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from tests.support.eventually import eventually
from tests.support.processes.brokers import RabbitMQ

QUEUE, DELAYING = "plain", "celery_delayed_0"


@pytest.fixture
def broker() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.mark.long
def test_a_delayed_message_is_forwarded_again_to_a_queue_that_was_down(broker: RabbitMQ) -> None:
    """With RabbitMQ's own three minutes in place of the tests' setting, this fails."""
    queue = Queue(QUEUE, Exchange(QUEUE, type="topic"), routing_key=QUEUE)
    queue.queue_arguments = {"x-queue-type": "quorum"}
    with Connection(broker.url) as connection:
        queue(connection.default_channel).declare()
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)
        with broker.without(QUEUE):
            key = calculate_routing_key(1, QUEUE)
            connection.Producer().publish("", exchange="celery_delayed_27", routing_key=key)
            # That it is not ready either tells a message that waits to be forwarded again.
            eventually(
                lambda: (
                    broker.left([]) == {DELAYING: 1}
                    and not broker.counts("messages_ready")[DELAYING]
                )
            )
        eventually(lambda: broker.left([QUEUE]) == {QUEUE: 1})
