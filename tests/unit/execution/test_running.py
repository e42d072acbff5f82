"""The runs of a process: which one has lost its lease, and which are left to the main process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_redlock import current_lease
from celery_redlock.execution import running
from celery_redlock.execution.run import Run
from celery_redlock.execution.running import (
    current,
    deferred_to_main,
    interrupt_current,
    release_deferred_to_main,
)
from celery_redlock.redlock.errors import LeaseLost
from tests.support.fakes.forged import NewTask, message_of
from tests.support.fakes.one_node import OneNode

NewRun = Callable[..., Run]


@pytest.fixture
def new_run(new_task: NewTask, node: OneNode) -> Iterator[NewRun]:
    """Begin a run inside the current one: `new_run(**options)`."""
    before = current.get()

    def new(key: str = "t", **options: Any) -> Run:
        message = message_of(new_task(name=key, **options))
        lease = node.acquire(key, 30.0)
        run = Run(message, lease, current.get())
        current.set(run)
        return run

    yield new
    current.set(before)


def test_outside_a_run_there_is_no_lease_and_nothing_to_strike() -> None:
    assert current_lease() is None
    assert not interrupt_current()


def test_the_current_lease_is_that_of_the_innermost_run(new_run: NewRun) -> None:
    new_run()
    inner = new_run("other")
    assert current_lease() is inner.lease


def test_the_runs_around_the_calling_code_are_its_own(new_run: NewRun) -> None:
    assert not running.is_held_by_caller(None)
    outer, inner = new_run(), new_run("other")
    assert running.is_held_by_caller(outer.lease.owner)
    assert running.is_held_by_caller(inner.lease.owner)
    assert not running.is_held_by_caller("another's")


def test_a_run_with_its_lease_is_not_struck(new_run: NewRun, log: Any) -> None:
    new_run()
    assert not interrupt_current()
    assert log() == []


def test_a_run_that_lost_its_lease_is_struck_once(new_run: NewRun, log: Any) -> None:
    run = new_run()
    run.lease.backing.is_lost = True
    with pytest.raises(LeaseLost) as caught:
        interrupt_current()
    assert caught.value.key == "t"
    assert run.is_interrupted
    assert not interrupt_current()
    line = "lease lost under a running task key=t task=t task_id=task-1 on_lost=abort"
    assert log() == [("ERROR", line)]


def test_a_run_that_continues_is_told_but_not_struck(new_run: NewRun, log: Any) -> None:
    run = new_run(lock_on_lost="continue")
    run.lease.backing.is_lost = True
    assert interrupt_current()
    assert not interrupt_current()
    assert [level for level, _ in log()] == ["ERROR"]


def test_a_run_that_is_over_is_not_struck(new_run: NewRun) -> None:
    run = new_run()
    run.lease.backing.is_lost = True
    run.is_over = True
    assert not interrupt_current()


def test_an_outer_run_that_lost_its_lease_is_struck(new_run: NewRun) -> None:
    outer = new_run("outer")
    new_run("inner")
    outer.lease.backing.is_lost = True
    with pytest.raises(LeaseLost) as caught:
        interrupt_current()
    assert caught.value.key == "outer"


def test_runs_left_to_the_main_process_are_released_once(new_run: NewRun, node: OneNode) -> None:
    run = new_run()
    run._is_kept_by_main = True
    run.end(SystemExit())
    assert node.owner_of("t") == run.lease.owner
    assert deferred_to_main == [run]
    release_deferred_to_main()
    assert node.owner_of("t") is None
    assert deferred_to_main == []
