"""Where and when a message goes that is put back into its queue."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError, OperationalError

from celery_redlock import SingletonTask
from celery_redlock.messages import requeue
from celery_redlock.messages.headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    SERIALIZER,
    nonce_in,
)
from celery_redlock.redlock.errors import LeaseLost
from tests.support.fakes.forged import context_of, deliver, delivery_of
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
DELAY = "0." * 27 + "1."


def new_app(broker: str, queue_type: str) -> Celery:
    exchange = Exchange("work", type="topic")
    queues = [
        Queue(name, exchange, routing_key=name, queue_arguments={"x-queue-type": queue_type})
        for name in ("first", "second")
    ]
    return Celery(broker=broker, task_queues=queues, set_as_current=False)


@pytest.fixture
def delaying() -> Iterator[Celery]:
    """An app whose broker keeps messages until their eta."""
    with new_app("amqp://", "quorum") as app:
        yield app


@pytest.fixture(params=[("amqp://", "classic"), ("redis://", "quorum")], ids=str)
def other(request: pytest.FixtureRequest) -> Iterator[Celery]:
    with new_app(*request.param) as app:
        yield app


def countdown(app: Celery, after: float, expires: Any = None) -> float:
    return requeue._countdown(app, after, expires)


def queue_of(app: Celery, exchange: str, routing_key: str) -> str | None:
    info = {"exchange": exchange, "routing_key": routing_key}
    task = SimpleNamespace(name="t", app=app)
    delivery = delivery_of(Context(id="task-1", delivery_info=info), task)
    return requeue.route_back(delivery).get("queue")


@pytest.mark.parametrize("after", [0.0, 0.3, 0.9, 1.0, 1.7, 2.5])
def test_the_broker_delays_by_whole_seconds_and_at_least_one(
    delaying: Celery, after: float
) -> None:
    for _ in range(20):
        found = countdown(delaying, after)
        assert found >= 1
        assert found == int(found)
        assert max(1, math.ceil(after * 0.9)) <= found <= max(1, math.ceil(after * 1.1))


def test_elsewhere_a_countdown_may_be_a_fraction(other: Celery) -> None:
    found = [countdown(other, 0.5) for _ in range(20)]
    assert 0.45 <= min(found) <= max(found) <= 0.55
    assert countdown(other, 0.0) == 0.1


def test_it_comes_back_before_it_expires(other: Celery, delaying: Celery) -> None:
    expires = dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=30.5)
    assert 0.1 <= countdown(other, 3600.0, expires) <= 29.5
    assert 1 <= countdown(delaying, 3600.0, expires) <= 29.5
    assert countdown(delaying, 29.4, expires) <= 29.5


def test_it_waits_for_half_the_time_that_the_broker_leaves_it_to_a_worker(other: Celery) -> None:
    assert countdown(other, 1e6) == 1800.0
    other.conf.broker_transport_options = {"visibility_timeout": 600}
    assert countdown(other, 1e6) == 300.0


def test_a_message_that_was_delayed_goes_back_to_its_queue(delaying: Celery) -> None:
    assert queue_of(delaying, "celery_delayed_delivery", f"{DELAY}second") == "second"
    assert queue_of(delaying, "work", "second") == "second"
    assert queue_of(delaying, "elsewhere", "second") is None
    assert queue_of(delaying, "celery_delayed_delivery", f"{DELAY}{DELAY}second") is None
    # Its queue's own rule holds: the queue's name is the key.
    assert queue_of(delaying, "", "second") is None


def test_elsewhere_celery_finds_the_queue(other: Celery) -> None:
    assert queue_of(other, "work", "second") is None


# --- what is published ----------------------------------------------------------------------------


class Body(Task):  # type: ignore[type-arg]
    name = "requeued"


def new_task(*, late: bool, app: Celery | None = None) -> tuple[Any, list[dict[str, Any]]]:
    """Return a task, and the options of what is published of it."""
    published: list[dict[str, Any]] = []
    task: Any = Body()
    task.bind(app or new_app("redis://", "classic"))
    task.acks_late = late
    task.apply_async = lambda args, kwargs, **options: published.append(
        {"args": args, "kwargs": kwargs, **options}
    )
    return task, published


def requeued(headers: dict[str, Any], *, late: bool = True, **info: Any) -> dict[str, Any]:
    """Put a message back and return the options with which it is published."""
    return requeued_as({"headers": headers, "delivery_info": info}, late=late)


def requeued_as(request_: dict[str, Any], *, late: bool = True) -> dict[str, Any]:
    """Put the message of a request back and return the options with which it is published."""
    task, published = new_task(late=late)
    request = context_of(id="task-1", args=[], kwargs={}, **request_)
    requeue.requeue_message(delivery_of(request, task), 1.0, {"more": 1}, expires=None)
    return published[0]


def test_a_message_goes_back_as_it_was_published(delaying: Celery) -> None:
    task, published = new_task(late=True, app=delaying)
    request = context_of(
        id="task-1", args=[1], kwargs={"b": 2}, retries=3, argsrepr="(hidden)",
        kwargsrepr="{hidden}", delivery_info={"exchange": "work", "routing_key": "second"},
        headers={SERIALIZER: "pickle"},
    )  # fmt: skip
    countdown = requeue.requeue_message(
        delivery_of(request, task), 10.0, {}, expires="2999-01-01T00:00:00"
    )
    [options] = published
    assert 9 <= countdown <= 11
    expected = {
        "args": (1,), "kwargs": {"b": 2}, "retries": 3, "argsrepr": "(hidden)",
        "kwargsrepr": "{hidden}", "queue": "second", "expires": "2999-01-01T00:00:00",
        "serializer": "pickle", "countdown": countdown,
    }  # fmt: skip
    assert {name: options[name] for name in expected} == expected
    assert options["producer"], "one that confirms"


def test_a_message_goes_back_before_it_expires() -> None:
    task, published = new_task(late=True)
    request = Context(id="task-1", args=[], kwargs={})
    assert requeue.requeue_message(delivery_of(request, task), 1000.0, {}, expires=31.0) == 30.0
    assert published[0]["countdown"] == 30.0


def test_a_message_does_not_say_what_its_own_did_not() -> None:
    options = requeued_as({})
    assert "serializer" not in options
    assert options["argsrepr"] is options["kwargsrepr"] is None


@pytest.mark.parametrize("late", [True, False])
def test_a_message_that_is_not_published_comes_again_if_acked_late(late: bool) -> None:
    error = OperationalError("gone")
    task, _ = new_task(late=late)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    task.apply_async = refuse
    delivery = delivery_of(Context(id="task-1", args=[], kwargs={}), task)
    with pytest.raises(Reject if late else OperationalError) as caught:
        requeue.requeue_message(delivery, 1.0, {}, expires=0)
    if late:
        assert (caught.value.reason, caught.value.requeue) == (error, True)  # type: ignore[attr-defined]
    else:
        assert caught.value is error


def test_a_message_keeps_headers_publication_and_id() -> None:
    options = requeued({PUBLICATION_HEADER: NONCE, "mine": 2})
    assert options["task_id"] == "task-1"
    assert options["headers"] == {
        PUBLICATION_HEADER: NONCE,
        DELIVERIES_HEADER: 0,
        "mine": 2,
        "more": 1,
    }


@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_message_keeps_whether_its_result_is_ignored(is_ignored: bool) -> None:
    # Celery before 5.7 publishes it with the task's own value: `get()` might wait for ever.
    assert requeued_as({"ignore_result": is_ignored})["ignore_result"] is is_ignored


def test_a_redelivered_message_stays_known_as_a_copy() -> None:
    assert requeued({}, redelivered=True)["headers"][COPY_HEADER] is True
    assert COPY_HEADER not in requeued({})["headers"]


def test_a_dead_letter_sent_back_is_another_publication() -> None:
    options = requeued({PUBLICATION_HEADER: NONCE, "x-death": [{"queue": "q", "count": 2}]})
    assert nonce_in(options["headers"]) not in ("", NONCE)


@pytest.mark.parametrize(
    ("late", "count", "is_patient"), [(False, 0, True), (True, 0, False), (True, 2, True)]
)
def test_publishing_is_retried_for_a_minute_where_returns_count(
    late: bool, count: int, is_patient: bool
) -> None:
    options = requeued({"x-delivery-count": count}, late=late)
    assert ("retry_policy" in options) == is_patient


@pytest.mark.parametrize(
    ("error", "late", "outcome"),
    [
        (OperationalError("gone"), True, "put back"),
        (OperationalError("gone"), False, "given up"),
        (EncodeError("no JSON"), True, "given up"),
        (SoftTimeLimitExceeded(), True, "interrupted"),
        (LeaseLost("key"), False, "interrupted"),
    ],
)
def test_a_retry_that_is_not_published_puts_its_message_back(
    app: Celery, node: OneNode, error: Exception, late: bool, outcome: str
) -> None:
    seen: list[Exception] = []

    class Refused(Task):  # type: ignore[type-arg]
        abstract = True

        def apply_async(self, *_: Any, **__: Any) -> Any:
            raise error

    @app.task(base=type("Mine", (SingletonTask, Refused), {}), bind=True, acks_late=late)
    def body(self: SingletonTask) -> None:
        try:
            self.retry(countdown=1)
        except Exception as ending:
            seen.append(ending)
            raise

    deliver(body)
    [ending] = seen
    if outcome == "interrupted":
        assert ending is error
    else:
        assert isinstance(ending, Reject)
        assert ending.requeue is (outcome == "put back")  # type: ignore[attr-defined]
        assert ending.reason is error  # type: ignore[attr-defined]


@pytest.mark.parametrize("retry_has_run", [False, True])
def test_what_was_requeued_does_not_run_after_its_own_retry(
    app: Celery, node: OneNode, retry_has_run: bool
) -> None:
    seen: list[int] = []

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], acks_late=True)
    def body(self: SingletonTask) -> None:
        seen.append(self.request.retries)

    carried = {PUBLICATION_HEADER: NONCE}
    if retry_has_run:
        deliver(body, **carried, retries=1)
    deliver(body, **{**carried, COPY_HEADER: REDELIVERED})
    assert seen == ([1] if retry_has_run else [0])
    assert not node.owner_of("t")


# --- how often it may be delivered ----------------------------------------------------------------


def bounded(
    headers: dict[str, Any],
    *,
    redelivered: bool = True,
    late: bool = True,
    queue: Any = None,
    expires: Any = None,
) -> tuple[Any, list[dict[str, Any]]]:
    """Return how a message ends that may be delivered again 3 times, and what is published."""
    task, published = new_task(late=late)
    task.app.conf.task_queues = [Queue("work", routing_key="work", queue_arguments=queue)]
    info = {"redelivered": redelivered, "exchange": "", "routing_key": "work"}
    request = context_of(
        id="task-1", args=[], kwargs={}, headers=headers, delivery_info=info, expires=expires
    )
    try:
        requeue.enforce_max_deliveries(delivery_of(request, task), 3)
    except (Ignore, Reject) as ending:
        return ending, published
    return None, published


@pytest.mark.parametrize(
    "queue",
    # The setting, the queue's own, and what is no limit.
    [None, {}, *({"x-delivery-limit": limit} for limit in (3, 0, -1, "9"))],
    ids=str,
)
def test_a_message_is_rejected_when_it_was_delivered_too_often(
    queue: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR")
    assert bounded({"x-delivery-count": 3}, queue=queue) == (None, [])
    assert caplog.messages == []
    ending, published = bounded({"x-delivery-count": 4}, queue=queue)
    [line] = caplog.messages
    assert line == (
        "message delivered too often, rejected task=requeued task_id=task-1 deliveries=4 limit=3"
    )
    assert isinstance(ending, Reject)
    assert ending.args == ("delivered 4 times before", False)
    ending, _ = bounded({"x-delivery-count": 2, DELIVERIES_HEADER: 2}, queue=queue)
    assert isinstance(ending, Reject)
    assert published == []


def test_the_limit_of_its_queue_comes_before_the_setting() -> None:
    limit = {"x-delivery-limit": 5}
    assert bounded({"x-delivery-count": 5}, queue=limit) == (None, [])
    assert isinstance(bounded({"x-delivery-count": 6}, queue=limit)[0], Reject)


def test_a_queue_may_forbid_all_but_one_return() -> None:
    ending, _ = bounded({"x-delivery-count": 2}, queue={"x-delivery-limit": 1})
    assert isinstance(ending, Reject)


def test_a_message_that_is_requeued_to_be_counted_comes_back_at_once() -> None:
    _, [options] = bounded({}, expires="2999-01-01T00:00:00")
    assert options["countdown"] == 0.1
    assert options["expires"] == "2999-01-01T00:00:00"


def test_where_returns_are_uncounted_a_message_keeps_its_count() -> None:
    ending, [options] = bounded({DELIVERIES_HEADER: 1})
    assert isinstance(ending, Ignore)
    assert options["headers"][DELIVERIES_HEADER] == 2
    assert delivery_of(context_of(headers=options["headers"])).is_redelivered
    assert bounded(options["headers"], redelivered=False) == (None, [])


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("count", "redelivered"), [(None, False), (0, False), (2, True), ("2", False)]
)
def test_a_body_sees_redelivered_after_its_message_was_requeued(
    app: Celery, node: OneNode, count: Any, redelivered: bool, late: bool
) -> None:
    seen: list[Any] = []
    given = {"redelivered": False, "priority": 3}

    @app.task(base=SingletonTask, bind=True, lock_key=[], acks_late=late)
    def body(self: SingletonTask) -> None:
        seen.append(self.request.delivery_info)

    deliver(body, **{DELIVERIES_HEADER: count}, delivery_info=given)
    assert seen == [{"redelivered": redelivered, "priority": 3}]
    assert given["redelivered"] is False


def test_a_message_that_does_not_come_again_is_not_counted() -> None:
    assert bounded({"x-delivery-count": 9}, late=False) == (None, [])
