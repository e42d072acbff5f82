"""Tasks whose arguments are pydantic models."""

# Without `from __future__ import annotations`: Celery 5.5 looks for models, not for their names.

from pydantic import BaseModel

from celery_redlock import SingletonTask, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app


class Order(BaseModel):
    number: str
    lines: list[str] = []


@singleton_task(app=app, pydantic=True)
def ship(order: Order, gate: str | None = None, *, fencing_token: int) -> Order:
    inside.run(gate, key=order.number)
    assert fencing_token > 0
    return Order(number=order.number, lines=[*order.lines, "shipped"])


@singleton_task(app=app, pydantic=True, bind=True, lock_key="{order[number]}")
def cancel(self: SingletonTask, order: Order, gate: str | None = None) -> Order:
    inside.run(gate, key=order.number)
    assert self.fencing_token
    return Order(number=order.number, lines=["cancelled"])
