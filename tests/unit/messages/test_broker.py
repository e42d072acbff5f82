"""What brokers differ in when a message is published, and how long their answer may take."""

from __future__ import annotations

from typing import Any

import pytest
from amqp.exceptions import AccessRefused, MessageNacked, RecoverableConnectionError
from celery import Celery
from kombu import Queue
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_redlock.messages.broker import (
    confirming_producer,
    is_refusal,
    may_delay,
    publish_confirmed,
    visibility_timeout,
)

ANSWER_WITHIN_S = 10.0
AMQP = {"read_timeout": ANSWER_WITHIN_S, "write_timeout": ANSWER_WITHIN_S, "confirm_publish": True}
REDIS = {"socket_timeout": ANSWER_WITHIN_S, "socket_connect_timeout": ANSWER_WITHIN_S}


@pytest.mark.parametrize(
    ("url", "given", "expected"),
    [
        ("amqp://localhost", {"max_retries": 1}, {**AMQP, "max_retries": 1}),
        ("amqp://localhost", {"read_timeout": 3}, AMQP | {"read_timeout": 3}),
        ("amqp://localhost", {"confirm_publish": False}, AMQP),
        ("redis://localhost", {"priority_steps": [1]}, {**REDIS, "priority_steps": [1]}),
        ("redis://localhost", {"socket_timeout": 3}, REDIS | {"socket_timeout": 3}),
    ],
)
def test_the_broker_has_to_answer_in_time(
    url: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    app = Celery(broker=url, set_as_current=False)
    app.conf.broker_transport_options = dict(given)
    with app, confirming_producer(app) as producer:
        assert producer.connection.transport_options == expected
    assert app.conf.broker_transport_options == given


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("redis://localhost", {}, 3600),
        ("redis://localhost", {"visibility_timeout": 60}, 60),
        ("sqs://key:secret@", {}, 1800),
        ("sqs://key:secret@", {"visibility_timeout": 60}, 60),
        ("amqp://localhost", {}, 3600),
    ],
)
def test_the_visibility_timeout_is_the_options_or_the_brokers(
    url: str, options: dict[str, Any], expected: float
) -> None:
    if url.startswith("sqs"):
        pytest.importorskip("boto3", reason="kombu needs it for SQS")
    with Celery(broker=url, set_as_current=False) as app:
        app.conf.broker_transport_options = options
        assert visibility_timeout(app) == expected


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [("amqp://", "quorum", True), ("amqp://", "classic", False), ("redis://", "quorum", False)],
)
def test_rabbitmq_delays_with_quorum_queues_only(url: str, kind: str, expected: bool) -> None:
    queues = [Queue("work", queue_arguments={"x-queue-type": kind})]
    with Celery(broker=url, task_queues=queues, set_as_current=False) as app:
        assert may_delay(app) is expected


def test_any_producer_does_for_other_brokers() -> None:
    with Celery(broker="memory://", set_as_current=False) as app, confirming_producer(app) as one:
        assert one is None


def test_a_channel_that_kombu_has_closed_is_replaced() -> None:
    connections = []

    def publish(producer: Any, **options: object) -> str:
        assert options == {"confirm_timeout": ANSWER_WITHIN_S}
        connections.append(producer.connection)
        if len(connections) == 1:
            producer.connection._connection = "the old one"
            raise AttributeError("'NoneType' object has no attribute 'client'")
        return "published"

    with Celery(broker="redis://localhost", set_as_current=False) as app:
        assert publish_confirmed(app, publish, is_patient=False) == "published"
    assert [connection._connection for connection in connections] == [None, None]


def test_an_error_that_stays_is_raised() -> None:
    tries = []

    def publish(producer: Any, **_options: object) -> None:
        tries.append(producer)
        raise AttributeError("no such attribute")

    for url, count in ("redis://localhost", 2), ("memory://", 1):
        tries.clear()
        with (
            Celery(broker=url, set_as_current=False) as app,
            pytest.raises(AttributeError, match="no such attribute"),
        ):
            publish_confirmed(app, publish, is_patient=False)
        assert len(tries) == count


def test_patience_is_for_what_would_be_lost() -> None:
    def publish(producer: Any, **options: Any) -> dict[str, Any]:
        assert producer is None
        return options

    with Celery(broker="memory://", set_as_current=False) as app:
        impatient = publish_confirmed(app, publish, is_patient=False)
        patient = publish_confirmed(app, publish, is_patient=True)
    assert impatient == {"confirm_timeout": ANSWER_WITHIN_S}
    assert patient["retry_policy"]["max_retries"] == 60


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("amqp://", OperationalError("gone"), True),
        ("amqp://", RecoverableConnectionError("gone"), True),
        ("amqp://", MessageNacked(), True),
        ("amqp://", AccessRefused("no right to write"), True),
        ("redis://", RedisTimeoutError("silent"), True),
        ("redis://", ConnectionRefusedError(), True),
        ("amqp://", EncodeError("no JSON"), False),
        ("redis://", TypeError("no number"), False),
        ("redis://", None, False),
    ],
)
def test_a_refusal_is_the_brokers(url: str, error: object, expected: bool) -> None:
    with Celery(broker=url, set_as_current=False) as app:
        assert is_refusal(app, error) is expected
