"""One execution under its lock, without a worker."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from celery_redlock.options import lock_options
from celery_redlock.redlock import Lease, Redlock
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.run import Run, Successor, done_label, heeds_mark
from celery_redlock.worker import _after_run


class Nodes(Redlock):
    """Takes down what is asked of the nodes; the first release may be struck by a time limit."""

    def __init__(self, *, struck: bool = False) -> None:
        super().__init__(["redis://127.0.0.1:1"])
        self.released: list[str | None] = []
        self.marked: list[str] = []
        self.reserved: list[dict[str, Any]] = []
        self._is_struck = struck

    def release(self, lease: Lease, *, done: str | None = None, **_: Any) -> None:
        if self._is_struck:
            self._is_struck = False
            raise SoftTimeLimitExceeded
        lease.is_released = True
        self.released.append(done)

    def reserve(self, key: str, ttl: float, **how: Any) -> Lease:
        self.reserved.append(how)
        return Lease(key, how["owner"], 2, 30_000, self.clock.now() + ttl, self.clock)

    def mark_done(self, key: str, label: str) -> None:
        self.marked.append(label)


class Sender:
    """A task, as far as a run needs one; signals want to hash it."""

    acks_late = True
    name = "task"
    request: Any = None


def new_run(nodes: Nodes, **request: Any) -> Run:
    context = Context(id="task-1", delivery_info={}, **request)
    task: Any = Sender()
    task.request = context
    lease = Lease("k", "owner", 1, 30_000, nodes.clock.now() + 30, nodes.clock)
    options = lock_options("task", {}, {}, max_ttl=60.0)
    run = Run(task, context, lease, nodes, options)
    context.redlock_run = run  # type: ignore[attr-defined]
    return run


@pytest.fixture(params=[None, ValueError(), Ignore(), Retry(), Reject(requeue=False)], ids=repr)
def ending(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_mark_is_left_at_the_end_and_made_to_last_when_celery_is_done(ending: Any) -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.end(ending)
    assert (nodes.released, nodes.marked) == (["task-1/0"], [])
    _after_run(run.task)
    assert (nodes.released, nodes.marked) == (["task-1/0"], ["task-1/0"])


@pytest.mark.parametrize("raised", [SystemExit(), LeaseLost("k"), Reject(requeue=True)], ids=repr)
def test_no_mark_is_left_by_what_comes_again(raised: BaseException) -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.end(raised)
    _after_run(run.task)
    assert (nodes.released, nodes.marked) == ([None], [])


def test_a_process_that_is_told_to_exit_meanwhile_does_not_make_the_mark_last() -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.end(None)
    try:
        sys.exit()  # when the tracer is about to store the result
    except SystemExit:
        _after_run(run.task)
    assert nodes.marked == []


def test_a_release_that_a_time_limit_struck_is_made_up_for() -> None:
    nodes = Nodes(struck=True)
    run = new_run(nodes)
    with pytest.raises(SoftTimeLimitExceeded):
        run.end(None)
    assert nodes.released == []
    _after_run(run.task)
    assert nodes.released == ["task-1/0"]


def test_a_run_that_never_came_to_its_body_leaves_no_mark() -> None:
    nodes = Nodes()
    _after_run(new_run(nodes).task)
    assert (nodes.released, nodes.marked) == ([None], [])


def test_a_lock_is_handed_over_from_its_own_lease_and_no_later_one() -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.successor = Successor("told:task-1@host", 3600.0)
    run.end(None)
    assert nodes.reserved == [
        {
            "label": "task-1",
            "supersedes": run.lease.owner,
            "owner": "told:task-1@host",
            "highest_floor": run.lease.token,
        }
    ]


def test_each_try_and_each_replacement_has_its_own_mark() -> None:
    labels = [
        done_label(Context(id="task-1", retries=retries, replaced_task_nesting=nesting))
        for retries in range(3)
        for nesting in range(3)
    ]
    assert len(set(labels)) == 9


@pytest.mark.parametrize(
    ("request_", "heeds"),
    [
        ({}, True),
        ({"is_eager": True}, False),
        ({"headers": {"x-death": [{}]}}, False),
        ({"headers": {"x-death": [{}]}, "delivery_info": {"redelivered": True}}, True),
        ({"headers": {"x-death": [{}], "redlock_copy": True}}, True),
    ],
)
def test_a_mark_is_heeded_unless_it_is_somebodys_will_to_run_again(
    request_: dict[str, Any], heeds: bool
) -> None:
    assert heeds_mark(Context(id="task-1", **request_)) is heeds
