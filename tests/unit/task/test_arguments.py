"""Arguments of calls with pydantic models: what is sent, and what the lock's key is made of."""

# Without `from __future__ import annotations`: Celery 5.5 looks for models, not for their names.

from decimal import Decimal
from typing import Any

import celery
import pytest
from celery import Celery, Task
from celery.local import maybe_evaluate
from pydantic import BaseModel

from celery_redlock import SingletonTask, current_lease, singleton_task
from celery_redlock.task.arguments import as_published, as_sent
from tests.support.fakes.forged import deliver

SENDS_MODELS = tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 7)


class Order(BaseModel):
    """A model, as users write one."""

    number: str
    lines: list[str] = []


class Invoice(BaseModel):
    """A model with a field that JSON does not know."""

    amount: Decimal = Decimal("1.50")


AS_JSON = {"number": "7", "lines": []}


@pytest.fixture(params=[True, False])
def ship(app: Celery, request: pytest.FixtureRequest) -> Any:
    """A task that takes a model, with the token or without."""

    def with_token(order: Order, gift: bool = False, *, fencing_token: int | None) -> Any:
        return [type(order), fencing_token]

    def without(order: Order, gift: bool = False) -> Any:
        return [type(order), 1]

    body = with_token if request.param else without
    return maybe_evaluate(singleton_task(app=app, name="ship", pydantic=True)(body))


@pytest.mark.skipif(not SENDS_MODELS, reason="sends no models")
def test_a_model_is_sent_as_json_and_without_the_token(ship: Any, published: Any) -> None:
    ship.delay(Order(number="7"))
    ship.apply_async(kwargs={"order": AS_JSON, "gift": True})
    assert [(one["argsrepr"], one["kwargsrepr"]) for one in published] == [
        (f"({AS_JSON!r},)", "{}"),
        ("()", f"{{'order': {AS_JSON!r}, 'gift': True}}"),
    ]


@pytest.mark.skipif(not SENDS_MODELS, reason="sends no models")
def test_a_call_with_a_model_is_dropped(app: Celery, ship: Any) -> None:
    ship.lock_lifetime = "until_executed"
    assert ship.delay(Order(number="7")).id == ship.delay(order=AS_JSON).id
    assert ship.drop(Order(number="7"))
    assert not ship.drop(AS_JSON)


@pytest.mark.skipif(not SENDS_MODELS, reason="sends no models")
def test_the_key_is_made_of_what_is_sent(ship: Any) -> None:
    order = Order(number="7")
    assert as_published(ship, [order], {}, None) == ((AS_JSON,), {})
    assert as_published(ship, [], {"order": order}, "json") == ((), {"order": AS_JSON})
    assert as_published(ship, [order], {}, "pickle") == ((order,), {})


@pytest.mark.skipif(not SENDS_MODELS, reason="sends no models")
def test_a_model_is_sent_as_its_task_says(app: Celery) -> None:
    dumped: Any = {"pydantic_dump_kwargs": {"exclude_defaults": True}}
    leases: list[Any] = []

    def body(order: Order, *, fencing_token: int | None) -> None:
        leases.append(current_lease())

    dumped["lock_lifetime"] = "until_executed"
    ship = maybe_evaluate(singleton_task(app=app, name="ship", pydantic=True, **dumped)(body))
    args, _ = as_sent(ship, (Order(number="7"),), {})
    assert args == ({"number": "7"},)
    ship.delay(Order(number="7"))
    assert ship.drop(Order(number="7"))
    ship.apply((Order(number="7"),))
    [lease] = leases
    assert lease.key == ship._key_of((Order(number="7"),), {})


def test_an_eager_call_has_the_key_of_its_message(ship: Any, app: Celery) -> None:
    @app.task(base=SingletonTask, name="plain", lazy=False)
    def plain(order: object, more: object = None) -> None: ...

    order = Order(number="7")
    assert as_published(plain, [order], {"more": order}, None) == ((order,), {"more": order})
    for task in (ship, plain):
        args, kwargs = as_sent(task, (order,), {})
        assert (list(args), kwargs) == ([AS_JSON], {})
    assert as_sent(plain, (1,), {"more": Invoice()}) == ((1,), {"more": {"amount": "1.50"}})
    assert ship.apply((order,)).get() == [Order, 1]


def test_a_celery_that_sends_no_models_leaves_arguments(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Task, "_dump_pydantic_arguments", raising=False)

    class Ship(SingletonTask):
        name = "ship"

        def run(self, order: object, *, fencing_token: int | None) -> int | None:
            return fencing_token

    ship: Any = app.register_task(Ship())
    assert as_published(ship, [AS_JSON], {}, None) == ((AS_JSON,), {})
    assert as_sent(ship, [Order(number="7")], {}) == ((AS_JSON,), {})
    assert ship.apply((AS_JSON,)).get() == 1


def test_a_key_may_use_attributes_of_a_model_that_is_pickled(app: Celery) -> None:
    @singleton_task(
        app=app, name="ship", pydantic=True, serializer="pickle", lock_lifetime="until_executed",
        lock_key="{order.number}",
    )  # fmt: skip
    def ship(order: Order) -> None: ...

    order = Order(number="7")
    first = ship.delay(order)
    ship.serializer = "json"
    assert ship.apply_async((order,), serializer="pickle").id == first.id
    ship.serializer = "pickle"
    assert ship.drop(order)
    deliver(ship, args=[order])
    assert ship.AsyncResult("task-1").state == "SUCCESS"
