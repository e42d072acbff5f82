"""Which queue a message came from, and that it goes back there and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.local import maybe_evaluate
from kombu import Exchange, Queue
from kombu.common import Broadcast

from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import PUBLICATION_HEADER, headers_to_publish, publication_of
from celery_redlock.messages.origin import ORIGIN, Origin, find_origin, origin_of
from celery_redlock.messages.requeue import route_back
from celery_redlock.worker import signal_handlers
from tests.support.fakes.forged import context_of, delivery_of

NONCE = "0123456789abcdef"
FANOUT = Broadcast("all", queue="all.1")
TOPIC = Exchange("work", type="topic")
QUEUES = [
    FANOUT,
    Queue("orders", TOPIC, routing_key="orders.*"),
    Queue("audit", TOPIC, routing_key="#"),
    Queue("mail", Exchange("post", type="direct"), routing_key="send"),
]
UNDECLARED = Queue("added.while.running")


def received(exchange: str, key: str, tag: str | None = None) -> Any:
    """Return the worker's request of a message that it has just received."""
    delivery = {"consumer_tag": tag} if tag else {}
    return SimpleNamespace(
        delivery_info={"exchange": exchange, "routing_key": key},
        message=SimpleNamespace(delivery_info=delivery),
        hostname="w1@host",
    )


def origin(exchange: str, key: str, tag: str | None = None) -> Origin | None:
    tags = {queue.name: f"None{number}" for number, queue in enumerate([*QUEUES, UNDECLARED])}
    consumer = SimpleNamespace(queues=QUEUES, _active_tags=tags)
    return find_origin(consumer, received(exchange, key, tag))


@pytest.mark.parametrize(
    ("exchange", "key", "tag", "expected"),
    [
        # AMQP tells by which consumer, and so from which queue, a message came.
        ("all", "any", "None0", Origin("all.1", "all.1")),
        ("work", "orders.new", "None1", Origin("orders")),
        ("work", "orders.new", "None2", Origin("audit")),
        ("work", "orders.new", "None4", Origin("added.while.running")),
        ("work", "orders.new", "None9", None),
        # Elsewhere it is told by what is declared.
        ("all", "any", None, Origin("", "w1@host")),
        ("work", "orders.new", None, Origin("orders")),
        ("work", "invoices", None, Origin("audit")),
        ("post", "send", None, Origin("mail")),
        ("post", "keep", None, None),
        ("elsewhere", "send", None, None),
        ("", "mail", "None3", None),
    ],
)
def test_the_queue_of_a_received_message_is_known(
    exchange: str, key: str, tag: str | None, expected: Origin | None
) -> None:
    assert origin(exchange, key, tag) == expected


def test_what_is_not_told_of_a_delivery_is_not_needed() -> None:
    request = received("post", "send")
    assert find_origin(None, request) is None
    request.message.delivery_info = None
    assert find_origin(SimpleNamespace(queues=QUEUES), request) == Origin("mail")


def test_no_publisher_can_send_an_origin(app: Celery, new_task: Any) -> None:
    assert origin_of(Context({ORIGIN: ["mail", ""]})) is None
    request = SimpleNamespace(
        **vars(received("", "mail")),
        task=maybe_evaluate(new_task()),
        content_type="application/json",
        request_dict={ORIGIN: ["mail", ""]},
    )
    signal_handlers._on_received(sender=None, request=request)
    assert request.request_dict[ORIGIN] is None


def test_an_origin_is_not_published(app: Celery) -> None:
    given = {"headers": {ORIGIN: Origin("mail"), "own": 1}}
    assert ORIGIN not in headers_to_publish("task-1", given, None)


def delivery_in(app: Celery, info: dict[str, str], origin: Origin | None = None) -> Delivery:
    request = Context(id="task-1", delivery_info=info, **{ORIGIN: origin})
    return delivery_of(request, SimpleNamespace(name="t", app=app))


def of(app: Celery, exchange: str, key: str) -> Delivery:
    return delivery_in(app, {"exchange": exchange, "routing_key": key})


def back(app: Celery, origin: Origin | None, exchange: str, key: str) -> tuple[Any, ...]:
    """Return the exchange and the key by which Celery would publish a message again."""
    route = route_back(delivery_in(app, {"exchange": exchange, "routing_key": key}, origin))
    if not route:
        return (exchange, key)
    queue = route["queue"]
    if isinstance(queue, str):
        return (queue,)
    assert (route["exchange"], queue.no_declare, queue.exchange.type) == ("", True, "direct")
    assert queue.routing_key == queue.name
    return (queue.exchange.name, queue.name)


@pytest.mark.parametrize("broker", ["amqp://", "redis://"])
def test_a_message_goes_back_past_its_exchange(broker: str) -> None:
    with Celery(broker=broker, task_queues=QUEUES, set_as_current=False) as app:
        assert back(app, Origin("all.1", "all.1"), "all", "any") == ("", "all.1")
        assert back(app, Origin("audit"), "work", "orders.new") == ("", "audit")
        assert back(app, Origin("mail"), "post", "send") == ("", "mail")
        # Sent to its queue by name, where Celery would choose the exchange of that queue.
        assert back(app, None, "", "all.1") == ("", "all.1")
        assert route_back(of(app, "", "all.1")) != {}
        assert route_back(of(app, "", "orders"))["exchange"] == ""
        assert route_back(of(app, "", "mail")) == {}
        assert route_back(of(app, "", "undeclared")) == {}
        # Of unknown origin.
        assert back(app, None, "elsewhere", "send") == ("elsewhere", "send")


def test_a_broker_that_delays_is_not_given_what_it_would_copy() -> None:
    alone = Queue("alone", TOPIC, routing_key="alone", queue_arguments={"x-queue-type": "quorum"})
    only = [alone, Broadcast("all", queue="all.1", routing_key="any")]
    with Celery(broker="amqp://", task_queues=only, set_as_current=False) as app:
        assert back(app, Origin("alone"), "work", "alone") == ("alone",)
        assert back(app, Origin("all.1", "all.1"), "all", "any") == ("", "all.1")
    with Celery(broker="amqp://", task_queues=[*only, *QUEUES], set_as_current=False) as app:
        assert back(app, Origin("alone"), "work", "alone") == ("", "alone")


def test_what_has_no_queue_can_not_be_requeued() -> None:
    def can_be_requeued(origin: Origin | None = None, *, is_eager: bool = False) -> bool:
        return delivery_of(context_of({ORIGIN: origin}, is_eager=is_eager)).can_be_requeued

    assert can_be_requeued()
    assert can_be_requeued(Origin("all.1", "all.1"))
    assert not can_be_requeued(Origin("", "w1@host"))
    assert not can_be_requeued(is_eager=True)


def test_each_copy_of_a_broadcast_is_a_publication_of_its_own() -> None:
    def publication(origin: Origin | None) -> str:
        return publication_of(context_of({PUBLICATION_HEADER: NONCE, ORIGIN: origin}))

    assert publication(None) == publication(Origin("audit")) == NONCE
    first, second = publication(Origin("all.1", "all.1")), publication(Origin("all.2", "all.2"))
    assert len({NONCE, first, second}) == 3
    assert first == publication(Origin("all.1", "all.1"))
    assert len(first) == len(NONCE)
