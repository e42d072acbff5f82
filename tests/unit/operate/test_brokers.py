"""What can be told of an app's brokers; `test_orphans` has what is found in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from celery_redlock.messages.reservation import Reservation
from celery_redlock.operate.brokers import Brokers, MessagesUnknown, reason_in
from tests.support.fakes.messages import Broker, RabbitMQ, RedisBroker

if TYPE_CHECKING:
    from collections.abc import Collection


def owners(
    read: Broker, write: Broker | None = None, queues: Collection[str] = ("work",)
) -> set[str]:
    return brokers(read, write).owners_in_messages(queues, {})


def brokers(read: Broker, write: Broker | None = None) -> Brokers:
    app: Any = SimpleNamespace(
        connection_for_read=lambda: read, connection_for_write=lambda: write or read
    )
    return Brokers(app)


def test_delivered_messages_are_shown_if_every_broker_shows_them() -> None:
    redis, rabbitmq = RedisBroker(), RabbitMQ()
    assert brokers(redis).keep_delivered is True
    assert brokers(redis, rabbitmq).keep_delivered is False
    assert brokers(rabbitmq, redis).keep_delivered is False


def test_a_declared_queue_is_read_though_a_scan_misses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = RedisBroker()
    monkeypatch.setattr(broker, "scan_iter", lambda *_, **__: iter(()))
    urgent = broker._q_for_pri("work", broker.priority_steps[1])
    for at, queue in enumerate(("work", urgent, "elsewhere")):
        broker.queue(queue, {"headers": Reservation("k", f"{at:032x}~:id@host").header})
    assert owners(broker) == {f"{at:032x}~:id@host" for at in (0, 1)}


def test_a_list_of_the_app_that_is_denied_is_an_error() -> None:
    broker = RedisBroker()
    broker.global_keyprefix = "bank:"
    broker.queue("shop:work", {"headers": {}})
    broker.denied = {"shop:work"}
    assert owners(broker) == set()
    broker.queue("bank:elsewhere", {"headers": {}})
    broker.denied.add("bank:elsewhere")
    with pytest.raises(PermissionError):
        owners(broker)


@pytest.mark.parametrize(
    ("alt", "is_one"),
    [(["sentinel://a", "b"], True), (["redis://a", "sentinel://b"], False), (["redis://a"], True)],
)
def test_only_the_servers_of_sentinel_are_one_broker(alt: list[str], *, is_one: bool) -> None:
    broker = RedisBroker()
    broker.alt = alt
    if is_one:
        assert owners(broker) == set()
    else:
        with pytest.raises(MessagesUnknown, match="there are several brokers"):
            owners(broker)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://:secret@127.0.0.1:1", "ConnectionError: Connection refused"),
        ("amqp://me:secret@127.0.0.1:1", "ConnectionRefusedError: Connection refused"),
        ("redis://:sec/ret@host", "ValueError"),
    ],
)
def test_the_reason_of_an_error_quotes_no_password(url: str, reason: str) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011  # of any client
        Connection(url).ensure_connection(max_retries=1)
    assert reason_in(raised.value) == reason


def test_other_errors_are_not_the_broker_s() -> None:
    with pytest.raises(KeyError), brokers(RedisBroker()).reachable():
        raise KeyError
