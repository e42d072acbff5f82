"""A retry of a singleton task: where its message goes, and how the run ends without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from celery import Celery, Task
from celery.exceptions import Reject, Retry
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from celery_redlock import LeaseLost, SingletonTask, singleton_task
from celery_redlock.execution.running import current
from celery_redlock.messages import broker, requeue
from celery_redlock.messages.origin import ORIGIN, Origin
from celery_redlock.pools import interrupt
from tests.support.fakes.forged import NewTask, deliver


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    """What was published: the body's arguments, the exchange and the routing key."""
    found: list[Any] = []

    def note(body: Any, exchange: str, routing_key: str, **_: Any) -> None:
        found.append((body[0], exchange, routing_key))

    before_task_publish.connect(note)
    yield found
    before_task_publish.disconnect(note)


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, ("", "mine")),
        ({"priority": 5}, ("", "mine")),
        ({"queue": "chosen"}, ("", "chosen")),
        ({"routing_key": "other"}, ("all", "other")),
    ],
)
def test_a_retry_goes_back_to_its_queue_unless_told_otherwise(
    app: Celery, sent: list[Any], options: dict[str, Any], target: tuple[str, str]
) -> None:
    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: Any, a: int) -> None:
        self.retry(args=[a + 1], countdown=0, **options)

    delivered: Any = {
        "delivery_info": {"exchange": "all", "routing_key": "any"},
        ORIGIN: Origin("mine"),
    }
    deliver(body, args=[1], **delivered)
    assert sent == [((2,), *target)]


@pytest.mark.parametrize("route", [{}, {"queue": "mine"}])
def test_a_retry_without_an_exchange_goes_where_celery_says(
    app: Celery, sent: list[Any], monkeypatch: pytest.MonkeyPatch, route: dict[str, str]
) -> None:
    monkeypatch.setattr(requeue, "route_back", lambda _: route)

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: Any) -> None:
        self.retry(countdown=0)

    deliver(body, delivery_info={"exchange": "all", "routing_key": "any"})
    assert sent == [((), "all", "any")]


@pytest.mark.parametrize("error", [None, ValueError("of the body")])
def test_a_retry_from_an_own_call_leaves_the_token_out(
    app: Celery, published: list[Any], error: Exception | None
) -> None:
    """Of a class whose call is Celery's, which pushes the arguments that the body gets."""

    class Company(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    @singleton_task(
        app=app, base=Company, bind=True, name="t", autoretry_for=(ValueError,), max_retries=1,
        retry_backoff=0,
    )  # fmt: skip
    def body(self: Any, a: int, *, b: int, fencing_token: int) -> int:
        if error:
            raise error
        if not self.request.retries:
            self.retry(countdown=0)
        return fencing_token

    deliver(body, args=[1], kwargs={"b": 2})
    ended = body.apply((1,), {"b": 2})
    assert [headers["kwargsrepr"] for headers in published] == ["{'b': 2}"]
    assert ended.result is error or ended.get() > 0


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("given", [{}, {"producer": "given"}])
def test_the_broker_confirms_a_retry(
    app: Celery, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], is_late: bool
) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(broker, "confirming_producer", lambda _: nullcontext("confirming"))
    monkeypatch.setattr(Task, "apply_async", lambda *_, **how: told.append(how))

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], acks_late=is_late)
    def body(self: Any) -> None:
        self.retry(countdown=1, **given)

    deliver(body)
    [how] = told
    assert how["producer"] == given.get("producer", "confirming")
    assert "confirm_timeout" in how
    assert ("retry_policy" in how) is not is_late


@pytest.mark.parametrize(
    ("failure", "is_late", "requeues"),
    [
        (OperationalError("gone"), True, True),
        (OperationalError("gone"), False, False),
        (LeaseLost("t"), True, None),
    ],
)
def test_a_retry_that_is_not_published_ends_the_run_otherwise(
    app: Celery, monkeypatch: pytest.MonkeyPatch, failure: Exception, is_late: bool,
    requeues: bool | None,
) -> None:  # fmt: skip
    ended: list[Any] = []

    def fail(*_: Any, **__: Any) -> Any:
        raise failure

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], acks_late=is_late)
    def body(self: Any) -> None:
        monkeypatch.setattr(Task, "apply_async", fail)
        try:
            self.retry(countdown=1)
        except Exception as ending:
            ended.append(ending)
            raise

    deliver(body)
    [ending] = ended
    if requeues is None:
        assert ending is failure
    else:
        assert isinstance(ending, Reject)
        assert (ending.reason, ending.requeue) == (failure, requeues)  # type: ignore[attr-defined]
        assert (ending.__cause__ is None) is not requeues


def test_a_run_that_an_operator_ends_is_not_retried(
    app: Celery, sent: list[Any], monkeypatch: pytest.MonkeyPatch, new_task: NewTask
) -> None:
    class Deaf:
        def trigger(self, error: object = None) -> None: ...

        def disarm(self) -> None: ...

    monkeypatch.setattr(interrupt, "new_interrupt", Deaf)
    task, other = new_task(), new_task(name="other")
    raised: list[Any] = []

    def body() -> None:
        other.push_request(id="task-2", retries=0, called_directly=False, delivery_info={})
        run: Any = current.get()
        for retried, ended_by in ((task, None), (task, "alice"), (other, None)):
            if ended_by:
                run.abort(ended_by)
            with pytest.raises((Retry, LeaseLost)) as caught:
                retried.retry(countdown=0)
            raised.append(caught.type)
        other.pop_request()

    task.run = body
    deliver(task)
    assert raised == [Retry, LeaseLost, Retry]
    assert len(sent) == 2


def test_a_retry_of_celerys_own_task_is_celerys(app: Celery, sent: list[Any]) -> None:
    app.task_cls = SingletonTask  # type: ignore[assignment]
    task: Any = app.tasks["celery.accumulate"]
    info = {"exchange": "all", "routing_key": "any"}
    task.push_request(
        **{ORIGIN: Origin("mine")}, id="task-1", retries=0, called_directly=False,
        delivery_info=info, args=[1], kwargs={},
    )  # fmt: skip
    with pytest.raises(Retry):
        task.retry(args=[2], countdown=0)
    task.pop_request()
    assert sent == [((2,), "all", "any")]
