"""Signals of the package: what a receiver is told, and by whom."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest
from celery import Celery
from celery.utils.dispatch import Signal

from celery_redlock import SingletonTask, signals
from celery_redlock.execution.running import interrupt_current
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

OF_LOCKS = (
    "lock_acquired", "lock_conflict", "lock_lost", "lock_released", "lock_unavailable",
    "lock_wait_began", "lock_wait_ended",
)  # fmt: skip


@pytest.fixture
def told() -> Any:
    """Name, sender and arguments of each signal of a lock that is sent."""
    heard: list[tuple[str, Any, dict[str, Any]]] = []

    def receiver(sender: Any, signal: Any, **given: Any) -> None:
        heard.append((signal.name, sender, given))

    for name in OF_LOCKS:
        getattr(signals, name).connect(receiver)
    yield heard
    for name in OF_LOCKS:
        getattr(signals, name).disconnect(receiver)


def is_signal(value: object) -> bool:
    return isinstance(value, Signal)


def declared(name: str) -> Any:
    """Return the names of the arguments that a signal declares."""
    return getattr(signals, name).providing_args


def test_each_signal_is_named_as_it_is_imported() -> None:
    named = {name: signal.name for name, signal in inspect.getmembers(signals, is_signal)}
    assert set(named) > set(OF_LOCKS)
    assert list(named) == list(named.values())


def test_a_run_sends_its_lease_as_it_begins_and_ends(new_task: NewTask, told: Any) -> None:
    task = new_task()
    deliver(task)
    assert [name for name, *_ in told] == ["lock_acquired", "lock_released"]
    for name, sender, given in told:
        assert sender.name == task.name
        assert set(given) == declared(name)
        assert given["task_id"] == "task-1"
    assert told[0][2]["lease"] is told[1][2]["lease"]


def test_a_conflict_sends_its_error_and_its_outcome(
    new_task: NewTask, node: OneNode, told: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    deliver(new_task())
    [(name, _, given)] = told
    assert name == "lock_conflict"
    assert set(given) == declared(name)
    assert given["outcome"] == "skip"


def test_a_wait_in_the_worker_sends_its_length(new_task: NewTask, node: OneNode, told: Any) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 3
    deliver(new_task(lock_on_conflict="wait", lock_wait=5))
    assert [name for name, *_ in told] == [
        "lock_wait_began", "lock_wait_ended", "lock_acquired", "lock_released",
    ]  # fmt: skip
    assert set(told[0][2]) == declared("lock_wait_began")
    assert told[1][2] == {"task_id": "task-1", "waited": pytest.approx(3)}


def test_the_end_of_a_wait_in_vain_is_sent_before_the_conflict(
    new_task: NewTask, node: OneNode, told: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    deliver(new_task(lock_on_conflict="wait", lock_wait=5))
    names = [name for name, *_ in told]
    assert names == ["lock_wait_began", "lock_wait_ended", "lock_conflict"]


def test_a_run_without_a_quorum_sends_its_error_and_outcome(
    new_task: NewTask, node: OneNode, told: Any
) -> None:
    node.is_up = False
    deliver(new_task(lock_on_unavailable="raise"))
    [(name, _, given)] = told
    assert name == "lock_unavailable"
    assert set(given) == declared(name)
    assert given["outcome"] == "raise"


def test_a_lost_lease_is_sent_once_before_it_is_released(app: Celery, told: Any) -> None:
    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        assert self.lease
        self.lease.backing.is_lost = True
        interrupt_current()

    deliver(body)
    assert [name for name, *_ in told] == ["lock_acquired", "lock_lost", "lock_released"]
    assert set(told[1][2]) == declared("lock_lost")


def test_a_receiver_that_raises_changes_nothing(
    new_task: NewTask, node: OneNode, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise ZeroDivisionError

    task = new_task()
    signals.lock_acquired.connect(broken)
    try:
        with caplog.at_level(logging.ERROR):
            deliver(task)
    finally:
        signals.lock_acquired.disconnect(broken)
    assert task.AsyncResult("task-1").state == "SUCCESS"
    assert node.held == {}
    assert any("ZeroDivisionError" in (record.exc_text or "") for record in caplog.records)
