"""One execution under its lock, without a worker."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded

from celery_redlock.config.declared_options import lock_options
from celery_redlock.execution import kills
from celery_redlock.execution.message import Message
from celery_redlock.execution.run import Run, Successor
from celery_redlock.execution.running import executions
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import PUBLICATION_HEADER
from celery_redlock.redlock import Lease, LockHeld, QuorumUnavailable
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.worker.signal_handlers import _on_postrun
from tests.support.fakes.forged import context_of

NONCE = "0123456789abcdef"
OWN = new_owner("task-1", publication=NONCE)


class Nodes(TaskLock):
    """Takes down what is asked of the nodes; the first release may be struck by a time limit."""

    def __init__(self, *, struck: bool = False) -> None:
        super().__init__(["redis://127.0.0.1:1"])
        self.released: list[str | None] = []
        self.marked: list[str] = []
        self.kept: dict[str, float] = {}
        self.reserved: list[dict[str, Any]] = []
        self._is_struck = struck
        self.answer: Exception | None = None

    def release(
        self, lease: Lease, *, keep: float = 0.0, done: str | None = None, **_: Any
    ) -> None:
        if self._is_struck:
            self._is_struck = False
            raise SoftTimeLimitExceeded
        lease.is_released = True
        self.released.append(done)
        self.kept[lease.owner] = keep

    def reserve(self, key: str, ttl: float, **how: Any) -> Lease:
        self.reserved.append({"key": key, "ttl": ttl, **how})
        return Lease(key, how["owner"], 2, 30_000, self.clock.now() + ttl, self.clock)

    def acquire_for_task(
        self, key: str, ttl: float = 30.0, *, supersedes: str | None = None, **_: Any
    ) -> Lease:
        if self.answer and getattr(self.answer, "owner", "") != supersedes:
            raise self.answer
        return Lease(key, "owner-2", 2, 30_000, self.clock.now() + ttl, self.clock)

    def mark_done(self, key: str, label: str) -> None:
        self.marked.append(label)


class Sender:
    """A task, as far as a run needs one; signals want to hash it."""

    acks_late = True
    name = "task"
    request: Any = None


def new_run(nodes: Nodes, *, min_hold: float = 0.0, **request: Any) -> Run:
    context = context_of(id="task-1", delivery_info={}, **request)
    task: Any = Sender()
    task.request = context
    now = nodes.clock.now()
    lease = Lease("k", OWN, 1, 30_000, now + 30, nodes.clock, acquired_at=now)
    options = lock_options("task", {"lock_min_hold": min_hold}, {}, max_ttl=60.0)
    message = Message(Delivery.of(task, context), nodes, options, "k", lambda _: None)
    run = Run(message, lease)
    executions[context] = run
    return run


@pytest.fixture(params=[None, ValueError(), Ignore(), Retry(), Reject(requeue=False)], ids=repr)
def ending(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_done_mark_is_set_at_the_end_and_then_prolonged(ending: Any) -> None:
    """Prolonged when Celery has stored the result."""
    nodes = Nodes()
    run = new_run(nodes)
    run.end(ending)
    assert (nodes.released, nodes.marked) == (["task-1/0"], [])
    _on_postrun(run.message.task)
    assert (nodes.released, nodes.marked) == (["task-1/0"], ["task-1/0"])


@pytest.mark.parametrize("raised", [SystemExit(), LeaseLost("k"), Reject(requeue=True)], ids=repr)
def test_no_mark_is_left_by_what_comes_again(raised: BaseException) -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.end(raised)
    _on_postrun(run.message.task)
    assert (nodes.released, nodes.marked) == ([None], [])


def test_a_reject_that_does_not_say_whether_to_requeue_ends_its_run() -> None:
    class Bare(Reject):
        def __init__(self) -> None:
            Exception.__init__(self)

    nodes = Nodes()
    new_run(nodes).end(Bare())
    assert nodes.released == ["task-1/0"]


def test_a_process_told_to_exit_does_not_prolong_the_done_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    # Celery has ended an earlier execution of the task, which counts for killed greenlets only.
    monkeypatch.setattr(kills, "_stored", deque(["task-1"]))
    run = new_run(nodes)
    run.end(None)
    try:
        sys.exit()  # when the tracer is about to store the result
    except SystemExit:
        _on_postrun(run.message.task)
    assert nodes.marked == []


def test_a_release_that_a_time_limit_struck_is_made_up_for() -> None:
    nodes = Nodes(struck=True)
    run = new_run(nodes)
    with pytest.raises(SoftTimeLimitExceeded):
        run.end(None)
    assert nodes.released == []
    _on_postrun(run.message.task)
    assert nodes.released == ["task-1/0"]


def test_a_run_that_never_came_to_its_body_leaves_no_mark() -> None:
    nodes = Nodes()
    _on_postrun(new_run(nodes).message.task)
    assert (nodes.released, nodes.marked) == ([None], [])


def test_a_lock_is_handed_over_from_its_own_lease_only() -> None:
    nodes = Nodes()
    run = new_run(nodes)
    run.successor = Successor("told:task-1@host", 3600.0)
    run.end(None)
    assert nodes.reserved == [
        {
            "key": "k",
            "ttl": 3600.0,
            "label": "task-1",
            "supersedes": run.lease.owner,
            "owner": "told:task-1@host",
            "highest_floor": run.lease.token,
        }
    ]


def lost_run(nodes: Nodes, ended_before: float) -> Run:
    run = new_run(nodes)
    run.lease.deadline = nodes.clock.now() - ended_before
    run.lease.lock_delay_ms = 60_000
    run.successor = Successor("told:task-1@host", 3600.0)
    return run


def test_a_lost_lock_is_not_handed_over_during_its_lock_delay(log: Any) -> None:
    nodes = Nodes()
    run = lost_run(nodes, ended_before=30.0)
    run.end(Retry())
    assert nodes.reserved == []
    assert run.lease.is_released
    line = "lock not handed over to the retry, lock delay is not over key=k task_id=task-1"
    assert ("INFO", line) in log()


def test_a_lost_lock_is_handed_over_after_its_lock_delay() -> None:
    nodes = Nodes()
    lost_run(nodes, ended_before=61.0).end(Retry())
    assert [how["owner"] for how in nodes.reserved] == ["told:task-1@host"]


# --- no quorum at the end -------------------------------------------------------------------------


class Down(Nodes):
    """Releases, but neither reserves nor marks."""

    def reserve(self, key: str, ttl: float, **how: Any) -> Lease:
        raise QuorumUnavailable(key, {"a": "down"}, 1)

    def mark_done(self, key: str, label: str) -> None:
        raise QuorumUnavailable(key, {"a": "down"}, 1)


def test_a_lock_that_is_not_handed_over_is_released(log: Any) -> None:
    nodes = Down()
    run = new_run(nodes, min_hold=600.0)
    run.successor = Successor("told:task-1@host", 3600.0)
    run.end(None)
    assert nodes.kept[OWN] > 0
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith("lock not handed over to the retry, lock released key=k error=cannot")


def test_a_lock_that_is_handed_over_is_not_held_for_longer() -> None:
    nodes = Nodes()
    run = new_run(nodes, min_hold=600.0)
    run.successor = Successor("told:task-1@host", 3600.0)
    run.end(None)
    assert nodes.kept[OWN] == 0


def test_a_done_mark_that_is_not_extended_is_logged(log: Any) -> None:
    run = new_run(Down())
    run.end(None)
    _on_postrun(run.message.task)
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith("done mark not extended, a copy may run again key=k error=cannot")


# --- a lease that was lost to another copy of the message -----------------------------------------


def held_by(task_id: str, publication: str, *, is_reservation: bool = False) -> LockHeld:
    owner = new_owner(task_id, publication=publication, is_reservation=is_reservation)
    return LockHeld("k", owner=owner)


HOLDERS = {
    "a copy of its message": (held_by("task-1", NONCE), True),
    "a copy that has run": (AlreadyDone("k", 1.0), True),
    "its own lease, which stands yet": (LockHeld("k", owner=OWN), False),
    "another task": (held_by("task-2", NONCE), False),
    "another message with its id": (held_by("task-1", "f" * 16), False),
    "its own reservation": (held_by("task-1", NONCE, is_reservation=True), False),
    "nobody": (None, False),
    "nobody knows": (QuorumUnavailable("k", {}, 3, "lock"), False),
}


def new_lost_run(nodes: Nodes, *, min_hold: float = 0.0) -> Run:
    run = new_run(nodes, min_hold=min_hold, headers={PUBLICATION_HEADER: NONCE})
    run.lease.backing.is_lost = True
    return run


@pytest.mark.parametrize("raised", [None, LeaseLost("k"), ValueError()], ids=repr)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_run_gives_way_to_a_copy_and_to_nobody_else(
    holder: str, raised: Exception | None
) -> None:
    nodes = Nodes()
    nodes.answer, gives_way = HOLDERS[holder]
    run = new_lost_run(nodes)
    run.end(raised)
    assert run.is_superseded_by_copy is gives_way
    if gives_way:
        _on_postrun(run.message.task)
        assert set(nodes.released) == {None}
        assert nodes.marked == []


@pytest.mark.parametrize(
    "raised", [Retry(), Ignore(), Reject(requeue=False), SystemExit()], ids=repr
)
def test_a_run_that_decided_on_its_message_gives_way_to_nobody(raised: BaseException) -> None:
    nodes = Nodes()
    nodes.answer = held_by("task-1", NONCE)
    run = new_lost_run(nodes)
    run.end(raised)
    assert not run.is_superseded_by_copy


def test_nobody_is_asked_by_a_run_that_kept_its_lease() -> None:
    nodes = Nodes()
    nodes.answer = AssertionError()
    run = new_run(nodes)
    run.end(ValueError())
    assert not run.is_superseded_by_copy


def test_a_lost_lock_that_nobody_has_stays_for_its_min_hold() -> None:
    nodes = Nodes()
    new_lost_run(nodes, min_hold=600.0).end(LeaseLost("k"))
    assert 0 < nodes.kept["owner-2"] <= 600.0
