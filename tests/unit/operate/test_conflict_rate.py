"""Conflicts per second, counted from workers' events."""

from __future__ import annotations

from celery import Celery

from celery_redlock.operate.conflict_rate import ConflictRate
from tests.support.eventually import eventually


def test_without_an_app_the_rate_is_unknown() -> None:
    with ConflictRate(None) as rate:
        assert str(rate.read(0.0)).startswith("unknown without an app")


def test_conflicts_are_counted_from_one_look_to_the_next() -> None:
    with Celery("bank", broker="memory://", set_as_current=False) as app, ConflictRate(app) as rate:
        incidents = rate._incidents
        assert incidents
        eventually(lambda: incidents.problem is None)
        assert rate.read(0.0) == "not measured yet"
        with app.connection_for_write() as connection:
            events = app.events.Dispatcher(connection)
            for kind in ("task-deduplicated", "task-lock-lost", "task-deduplicated"):
                events.send(kind, uuid="t", name="bank.sync", key="k")
        eventually(lambda: incidents.conflicts == 2)
        assert rate.read(4.0) == 0.5
        assert rate.read(4.0) == "not measured yet", "no time has passed"
        assert rate.read(5.0) == 0.0


def test_a_broker_that_is_away_is_named() -> None:
    with Celery("bank", broker="redis://127.0.0.1:1", set_as_current=False) as app:
        rate = ConflictRate(app)
        assert rate.read(0.0) == "not measured yet"
        with rate:
            eventually(lambda: "refused" in str(rate.read(0.0)))
