"""What is recorded of executions, calls and ticks; by name, task and outcome."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, signals
from celery.exceptions import Retry

import celery_redlock.signals as ours
from celery_redlock import SingletonTask
from celery_redlock.config.options import OnConflict, OnUnavailable
from celery_redlock.observers.measurements import COUNTERS, GAUGES, HISTOGRAMS, Recorder
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


class Noted(Recorder):
    """A recorder that notes what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.seconds: list[float] = []

    def count(self, name: str, task: str, outcome: str = "") -> None:
        assert name in COUNTERS
        assert outcome in (COUNTERS[name][1] or ("",))
        self.got.append((name, task, outcome) if outcome else (name, task))

    def observe(self, name: str, task: str, seconds: float) -> None:
        assert name in HISTOGRAMS
        self.got.append((name, task))
        self.seconds.append(seconds)

    def change(self, name: str, task: str, by: int) -> None:
        assert name in GAUGES
        self.got.append((name, task, by))

    def set_votes(self, votes: int, nodes: int, needed: int) -> None:
        self.got.append((votes, nodes, needed))


@pytest.fixture
def recorder(app: Celery) -> Noted:
    recorder = Noted()
    recorder.connect(app)
    return recorder


def test_a_run_is_counted_and_timed(app: Celery, node: OneNode, recorder: Noted) -> None:
    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        node.clock.move(2.0)

    deliver(body)
    assert recorder.seconds == [0.0, 2.0]
    assert recorder.got == [
        ("acquired", "t"), ("held", "t", 1), ("acquire", "t"),
        ("released", "t"), ("held", "t", -1), ("hold", "t"),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", ["skip", "complete", "raise"])
def test_a_conflict_is_counted_by_its_policy(
    new_task: NewTask, node: OneNode, recorder: Noted, policy: str
) -> None:
    node.held["t"] = HOLDER, 1e9
    deliver(new_task(lock_on_conflict=policy))
    assert recorder.got == [("conflicts", "t", policy)]


@pytest.mark.parametrize("policy", ["reschedule", "coalesce"])
def test_a_requeued_message_counts_by_policy_and_by_reason(
    new_task: NewTask, node: OneNode, recorder: Noted, policy: str
) -> None:
    node.held["t"] = HOLDER, 1e9
    deliver(new_task(lock_on_conflict=policy))
    assert recorder.got == [("conflicts", "t", policy), ("rescheduled", "t", "conflict")]


def test_an_execution_without_a_quorum_is_counted_by_its_outcome(
    new_task: NewTask, node: OneNode, recorder: Noted
) -> None:
    node.is_up = False
    deliver(new_task())
    expected = [("unavailable", "t", "reschedule"), ("rescheduled", "t", "unavailable")]
    assert recorder.got == expected


@pytest.mark.parametrize("reason", ["as its owner wants", Retry(exc=ValueError())])
def test_a_retry_for_another_reason_is_not_counted(
    new_task: NewTask, recorder: Noted, caplog: pytest.LogCaptureFixture, reason: object
) -> None:
    signals.task_retry.send(sender=new_task(), reason=reason)
    assert (recorder.got, caplog.records) == ([], [])


def test_a_wait_is_a_gauge_and_a_time(new_task: NewTask, node: OneNode, recorder: Noted) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(new_task(lock_on_conflict="wait", lock_wait=5))
    assert recorder.got[:3] == [("waiting", "t", 1), ("waiting", "t", -1), ("wait", "t")]
    assert recorder.seconds[0] == pytest.approx(3)


def test_a_duplicate_call_is_counted_as_not_published(
    new_task: NewTask, node: OneNode, recorder: Noted
) -> None:
    node.held["t"] = WAITING, 1e9
    new_task(lock_lifetime="until_executed").delay()
    assert recorder.got == [("conflicts", "t", "not_published")]


def test_a_lost_lease_is_not_counted_as_released(app: Celery, recorder: Noted) -> None:
    class Lost:
        lost = True
        acquired_at = 0.0

        class clock:  # noqa: N801  # an attribute of a lease
            now = staticmethod(lambda: 1.0)

    class Task:
        name = "t"

    Task.app = app  # type: ignore[attr-defined]
    ours.lock_lost.send(sender=Task, task_id="1", lease=Lost)
    ours.lock_released.send(sender=Task, task_id="1", lease=Lost)
    assert recorder.got == [("lost", "t"), ("held", "t", -1), ("hold", "t")]


def test_tasks_and_nodes_of_another_app_are_not_recorded(
    app: Celery, recorder: Noted, caplog: pytest.LogCaptureFixture
) -> None:
    with Celery("other", set_as_current=False) as other:
        ours.nodes_checked.send(sender=other, votes=1, nodes=1, needed=1)
    ours.nodes_checked.send(sender=app, votes=3, nodes=5, needed=3)
    assert recorder.got == [(3, 5, 3)]
    assert caplog.records == [], "no receiver has failed"


def test_a_tick_is_counted_by_the_entrys_task(recorder: Noted) -> None:
    class Entry:
        task = "idle"

    ours.tick_processed.send(sender=None, entry=Entry, slot="", outcome="elsewhere")
    assert recorder.got == [("ticks", "idle", "elsewhere")]


def test_every_policy_has_its_outcome() -> None:
    # `wait` ends as another policy.
    policies = {policy.value for policy in OnConflict} - {"wait"}
    assert set(COUNTERS["conflicts"][1]) == policies | {"parked", "not_published"}
    unavailable = {policy.value for policy in OnUnavailable}
    assert set(COUNTERS["unavailable"][1]) == unavailable | {"parked", "unreserved"}
