"""How workers are asked over the broker, and what becomes of an answer that is an error."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_redlock.operate.brokers import MessagesUnknown
from celery_redlock.operate.workers import (
    consumed_queues,
    rate_limited,
    remote_control,
    task_ids,
)
from tests.support.fakes.messages import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def workers(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(app.control, "inspect", workers.inspect)
    return workers


def test_a_worker_whose_queues_are_an_error_is_named(app: Celery, workers: Workers) -> None:
    workers.answers["active_queues"] = {"w@1": {"error": "no"}}
    with pytest.raises(MessagesUnknown, match=r"worker w@1 answered \{'error': 'no'\}"):
        consumed_queues(app)


def test_where_no_worker_answered_none_is_asked_more(app: Celery, workers: Workers) -> None:
    assert consumed_queues(app) == {}
    assert task_ids(app, []) == rate_limited(app, []) == set()
    assert workers.asked == ["active_queues"]


def test_workers_that_do_not_answer_are_named(app: Celery, workers: Workers) -> None:
    with pytest.raises(MessagesUnknown, match="worker w@1, w@2 does not answer, and may have some"):
        task_ids(app, ["w@2", "w@1"])


class Connection:
    """A connection to a broker that notes how it is made.

    Attributes:
        transport_options: The app's, and those that were added.
        made: How it was made.
    """

    def __init__(self, driver_type: str, exchange_types: set[str]) -> None:
        implements = SimpleNamespace(exchange_type=exchange_types)
        self.transport = SimpleNamespace(driver_type=driver_type, implements=implements)
        self.transport_options: dict[str, float] = {"socket_timeout": 9.0}
        self.made: dict[str, float] = {}

    @contextmanager
    def connection_for_write(self, **how: float) -> Iterator[Connection]:
        self.made |= how
        yield self

    def ensure_connection(self, **how: float) -> None:
        self.made |= how


@pytest.mark.parametrize(
    ("driver_type", "added"), [("redis", {"socket_connect_timeout": 4.0}), ("amqp", {})]
)
def test_a_broker_is_tried_once_and_for_four_seconds(
    driver_type: str, added: dict[str, float]
) -> None:
    broker = Connection(driver_type, {"direct", "fanout"})
    with remote_control(broker) as connection:
        assert connection is broker
    assert broker.made == {"connect_timeout": 4.0, "max_retries": 1, "interval_start": 0}
    assert broker.transport_options == {"socket_timeout": 9.0} | added


def test_a_broker_without_broadcasts_is_not_connected_to() -> None:
    broker = Connection("sqs", {"direct"})
    with remote_control(broker) as connection:
        assert connection is None
    assert broker.made == {"connect_timeout": 4.0}
