"""A call with pydantic models has the same key as its message, wherever it runs."""

# Without `from __future__ import annotations`: Celery 5.5 looks for models, not for their names.

from decimal import Decimal
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from celery_redlock import singleton_task
from celery_redlock.redlock import Lease
from celery_redlock.task import singleton
from tests.support.fakes.one_node import OneNode

app = Celery("models", set_as_current=False)
app.conf.redlock_nodes = ["redis://nowhere"]


class Order(BaseModel):
    number: str
    lines: list[str] = []


@singleton_task(app=app, pydantic=True)
def ship(order: Order, urgent: bool = False) -> str:
    return order.number


@singleton_task(app=app, pydantic=True)
def bill(order: Order = Order(number="7")) -> str:  # noqa: B008  # as users write it
    return order.number


class Invoice(BaseModel):
    amount: Decimal = Decimal("1.50")


@singleton_task(app=app, pydantic=True)
def pay(invoice: Invoice = Invoice()) -> str:  # noqa: B008  # as users write it
    return str(invoice.amount)


class Recorder(OneNode):
    """A lock that notes the keys that are acquired."""

    def __init__(self) -> None:
        super().__init__()
        self.acquired: list[str] = []

    def acquire_for_task(self, key: str, *args: Any, **kwargs: Any) -> Lease:
        self.acquired.append(key)
        return super().acquire_for_task(key, *args, **kwargs)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lock keys of what is executed."""
    redlock = Recorder()
    monkeypatch.setattr(singleton, "redlock_of", lambda app: redlock)
    return redlock.acquired


def test_an_eager_call_with_a_model_has_the_key_of_its_message(keys: list[str]) -> None:
    order = Order(number="7", lines=["a"])
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((order,), {}),
        ((), {"order": order}),
        ((order.model_dump(),), {}),
    ]
    for args, kwargs in calls:
        assert ship.apply(args, kwargs).get() == "7"
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert ship.apply((Order(number="8"),)).get() == "8"
    assert keys[-1] != keys[0]


def test_a_default_model_has_the_key_of_the_same_model_given(keys: list[str]) -> None:
    for args in ((), (Order(number="7"),), ({"number": "7", "lines": []},)):
        assert bill.apply(args).get() == "7"
    assert len(keys) == 3
    assert len(set(keys)) == 1
    bill.apply((Order(number="8"),))
    assert keys[-1] != keys[0]


def test_a_default_model_is_in_the_key_as_the_json_of_a_message(keys: list[str]) -> None:
    for args in ((), (Invoice(),), ({"amount": "1.50"},)):
        assert pay.apply(args).get() == "1.50"
    assert len(set(keys)) == 1
