"""Conflicts and lost leases that workers announce."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import incidents as module
from celery_redlock.operate.incidents import Incident, Incidents
from tests.support.eventually import eventually

CONFLICT = {
    "type": "task-deduplicated", "timestamp": 1e9, "name": "bank.sync", "uuid": "t-2", "key": "k",
    "holder": "t-1", "outcome": "skip", "hostname": "w1",
}  # fmt: skip


def test_an_event_is_an_incident() -> None:
    incidents = Incidents(app=None)
    incidents.note(CONFLICT)
    assert incidents.latest == [
        Incident("conflict", 1e9, "bank.sync", "t-2", "k", "t-1", "skip", "w1")
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "task-succeeded"},
        {"timestamp": None},
        {"timestamp": "now"},
        {"timestamp": math.nan},
        {"timestamp": math.inf},
        {"timestamp": -1},
        {"timestamp": 1e11},
    ],
    ids=str,
)
def test_what_is_no_incident_is_left_out(wrong: dict[str, Any]) -> None:
    incidents = Incidents(app=None)
    incidents.note(CONFLICT | wrong)
    assert incidents.latest == []


def test_missing_and_endless_fields_do_no_harm() -> None:
    incidents = Incidents(app=None)
    incidents.note({"type": "task-lock-lost", "timestamp": 1, "key": "k" * 9999, "name": [1]})
    [incident] = incidents.latest
    assert (incident.key, incident.task, incident.outcome) == ("k" * 1000, "[1]", "")


def test_the_latest_come_first_and_the_oldest_are_forgotten() -> None:
    incidents = Incidents(app=None)
    for number in range(300):
        incidents.note(CONFLICT | {"timestamp": number, "key": f"k{number}"})
    assert [incident.at for incident in incidents.latest] == list(range(299, 99, -1))


def test_incidents_that_are_alike_are_one_with_a_count() -> None:
    incidents = Incidents(app=None)
    for number in range(12):
        incidents.note(
            CONFLICT | {"timestamp": number, "uuid": f"t-{number}", "holder": f"h-{number}"}
        )
    incidents.note(CONFLICT | {"timestamp": 20, "outcome": "complete"})
    incidents.note(CONFLICT | {"timestamp": 21, "type": "task-lock-lost"})
    incidents.note(CONFLICT | {"timestamp": 30, "uuid": "t-30"})
    first, lost, complete = incidents.latest
    assert (first.count, first.since, first.at, first.task_id) == (13, 0.0, 30.0, "t-30")
    assert (lost.kind, lost.count, lost.since) == ("lost", 1, None)
    assert (complete.outcome, complete.count) == ("complete", 1)
    assert incidents.conflicts == 14


def test_a_count_goes_on_beyond_what_is_remembered() -> None:
    incidents = Incidents(app=None)
    for number in range(500):
        incidents.note(CONFLICT | {"timestamp": number})
    [incident] = incidents.latest
    assert (incident.count, incident.since, incident.at) == (500, 0.0, 499.0)


def test_events_of_the_app_are_received() -> None:
    others = threading.enumerate()
    with (
        Celery("bank", broker="memory://incidents", set_as_current=False) as app,
        Incidents(app) as incidents,
    ):
        eventually(lambda: incidents.problem is None)
        [thread] = [one for one in threading.enumerate() if one not in others]
        assert thread.daemon
        fields = {name: CONFLICT[name] for name in ("name", "uuid", "key", "holder", "outcome")}
        with app.connection_for_write() as connection:
            dispatcher = app.events.Dispatcher(connection, hostname="w1")
            dispatcher.send("task-deduplicated", **fields)
            dispatcher.send("task-started", uuid="t-2")
        eventually(lambda: incidents.latest)
    [incident] = incidents.latest
    assert (incident.key, incident.holder, incident.worker) == ("k", "t-1", "w1")
    eventually(lambda: not thread.is_alive())


def test_a_broker_that_is_away_is_told() -> None:
    with Celery("bank", broker="redis://127.0.0.1:1", set_as_current=False) as app:
        incidents = Incidents(app)
        assert incidents.problem == "not connected to the broker yet"
        assert incidents.conflict_rate(0.0) == "not measured yet"
        with incidents:
            eventually(lambda: "Connection refused" in (incidents.problem or ""))
            assert "refused" in str(incidents.conflict_rate(0.0))


def test_a_connection_is_tried_once_more_at_once() -> None:
    receiver, tries = SimpleNamespace(capture=lambda: None), list[dict[str, int]]()
    connection = SimpleNamespace(ensure_connection=lambda **how: tries.append(how))
    app: Any = SimpleNamespace(
        connection_for_read=lambda: nullcontext(connection),
        events=SimpleNamespace(Receiver=lambda *_, **__: receiver),
    )
    incidents = Incidents(app)
    incidents._stopped.set()
    incidents._receive()
    assert tries == [{"max_retries": 1, "interval_start": 0}]
    assert (receiver.connect_max_retries, receiver.should_stop) == (1, True)


def test_the_end_waits_for_a_broker_that_hangs_for_two_seconds() -> None:
    waits: list[float] = []
    for ident in (None, 7):  # not started, and started
        incidents = Incidents(None)
        incidents._thread = SimpleNamespace(ident=ident, join=waits.append)  # type: ignore[assignment]
        with incidents:
            pass
    assert waits == [2.0]


def test_a_broker_that_fails_is_tried_again_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    class Stopped(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            if len(pauses) == 3:
                self.set()
            return self.is_set()

    def fail() -> None:
        raise OSError(len(pauses) + 500, f"down {len(pauses)}", "redis://:secret@host")

    parts = SimpleNamespace(Event=Stopped, Thread=threading.Thread)
    monkeypatch.setattr(module, "threading", parts)
    app: Any = SimpleNamespace(connection_for_read=fail)
    incidents = Incidents(app)
    incidents.start()
    eventually(lambda: incidents.problem == "OSError: down 2")
    assert pauses[:2] == [5.0, 5.0]


def test_without_an_app_the_rate_of_conflicts_is_unknown() -> None:
    others = threading.enumerate()
    with Incidents(None) as incidents:
        assert threading.enumerate() == others
        assert str(incidents.conflict_rate(0.0)).startswith("unknown without an app")


def test_conflicts_are_counted_from_one_look_to_the_next() -> None:
    incidents = Incidents(Celery("bank", set_as_current=False))
    incidents.problem = None
    incidents.note(CONFLICT)
    assert incidents.conflict_rate(10.0) == "not measured yet"
    for kind in ("task-deduplicated", "task-lock-lost", "task-deduplicated"):
        incidents.note(CONFLICT | {"type": kind})
    assert incidents.conflict_rate(14.0) == 0.5
    assert incidents.conflict_rate(14.0) == "not measured yet", "no time has passed"
    assert incidents.conflict_rate(15.0) == 0.0
    incidents.problem = "down"
    assert incidents.conflict_rate(16.0) == "unknown: down"
    incidents.problem = None
    assert incidents.conflict_rate(17.0) == "not measured yet", "some were missed"
    assert incidents.conflict_rate(18.0) == 0.0
