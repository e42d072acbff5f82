"""One execution, from its lock to its outcome: what is released, and when."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from celery import Celery
from celery.exceptions import Ignore, InvalidTaskError, Reject, SoftTimeLimitExceeded

from celery_redlock import SingletonTask
from celery_redlock.config import app_lock
from celery_redlock.execution.execution import execute
from celery_redlock.execution.running import current, executions
from celery_redlock.messages import requeue
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.reservation import Reservation
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone, LeaseLost
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver, message_of
from tests.support.fakes.one_node import OneNode

T = TypeVar("T")
NONCE = "0123456789abcdef"
CARRIED = {PUBLICATION_HEADER: NONCE}
MARK = "task-1/0/" + NONCE


def test_the_body_runs_under_its_lease_and_the_lock_is_released(app: Celery, node: OneNode) -> None:
    seen: list[tuple[bool, int]] = []

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        assert self.lease
        seen.append((node.owner_of("t") == self.lease.owner, self.lease.token))

    deliver(body)
    assert seen == [(True, 1)]
    assert node.held == {}
    assert current.get() is None


def test_a_body_is_given_its_lease_and_a_nested_run_the_run_around_it(new_task: NewTask) -> None:
    leases: list[Any] = []
    runs: list[Any] = []

    def run_inner(lease: Lease | None) -> None:
        leases.append(lease)
        runs.append(current.get())

    def run_outer(lease: Lease | None) -> None:
        execute(replace(message_of(new_task(name="inner")), body=run_inner))
        run_inner(lease)

    execute(replace(message_of(new_task(name="outer")), body=run_outer))
    assert [lease.key for lease in leases] == ["inner", "outer"]
    assert [run.lease for run in runs] == leases
    assert [run.outer for run in runs] == [runs[1], None]


def test_the_lock_is_released_before_the_result_is_stored(app: Celery, node: OneNode) -> None:
    stored: list[str | None] = []

    class Storing(type(app.backend)):  # type: ignore[misc]
        def store_result(self, *args: Any, **kwargs: Any) -> Any:
            stored.append(node.owner_of("t"))
            return super().store_result(*args, **kwargs)

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None: ...

    app.backend.__class__ = Storing
    deliver(body)
    assert stored == [None]


def test_a_killed_greenlets_message_is_requeued_without_a_mark(
    app: Celery, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GreenletExit(BaseException):
        """As that of greenlet, which need not be installed."""

    @app.task(base=SingletonTask, name="t", lock_key=[], acks_late=True)
    def body() -> None:
        raise GreenletExit

    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(GreenletExit=GreenletExit))
    with pytest.raises(Reject) as caught:
        execute(message_of(body))
    assert caught.value.requeue  # type: ignore[attr-defined]
    assert node.held == {}
    assert node.done == set()


@pytest.mark.parametrize("error", [ValueError, SoftTimeLimitExceeded])
def test_the_lock_of_a_failed_run_is_released(
    app: Celery, node: OneNode, error: type[Exception]
) -> None:
    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        raise error

    deliver(body)
    assert body.AsyncResult("task-1").state == "FAILURE"
    assert node.held == {}


def test_a_lost_lease_without_a_key_fails_the_task_with_its_key(app: Celery, node: OneNode) -> None:
    """In a thread, the exception is raised as a class, which knows no key."""

    @app.task(base=SingletonTask, name="t", lock_key=[])
    def body() -> None:
        raise LeaseLost

    deliver(body)
    error = body.AsyncResult("task-1").result
    assert isinstance(error, LeaseLost)
    assert error.key == "t"


@pytest.fixture
def dropped(app: Celery, node: OneNode) -> Any:
    """A task whose lock somebody releases while it runs, which ends as its argument says."""

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask, raised: str | None = None) -> None:
        assert self.lease
        node.drop_owner("t", self.lease.owner, "alice@ops at noon")
        self.lease.backing.is_lost = True
        if raised:
            raise {"struck": LeaseLost(), "found": LeaseLost("t"), "other": LeaseLost("k")}[raised]

    return body


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        ("struck", "it was released by alice@ops at noon"),
        ("found", "it was released by alice@ops at noon"),
        ("other", "it could not be renewed in time"),
    ],
)
def test_a_task_whose_lock_was_released_tells_by_whom(
    dropped: Any, raised: str, reason: str
) -> None:
    deliver(dropped, args=(raised,))
    assert dropped.AsyncResult("task-1").result.reason == reason


def test_the_log_tells_by_whom_a_runs_lock_was_released(dropped: Any, log: Any) -> None:
    """Also if the body does not end by it."""
    deliver(dropped)
    assert dropped.AsyncResult("task-1").state == "SUCCESS"
    lines = [line for line in log() if line[1].startswith("lock of the run was released")]
    line = (
        "lock of the run was released by others key=t task=t task_id=task-1 "
        "reason=it was released by alice@ops at noon"
    )
    assert lines == [("ERROR", line)]


@pytest.mark.parametrize("key", ["t", ""])
def test_a_loss_that_nobody_can_explain_keeps_its_reason(app: Celery, key: str) -> None:
    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        assert self.lease
        self.lease.backing.is_lost = True
        raise LeaseLost(key, "no quorum confirms it")

    deliver(body)
    error = body.AsyncResult("task-1").result
    assert isinstance(error, LeaseLost)
    assert error.reason == "no quorum confirms it"


def test_a_message_that_no_node_can_store_is_refused_unlocked(
    new_task: NewTask, node: OneNode
) -> None:
    with pytest.raises(InvalidTaskError):
        message_of(new_task(), retries="\ud800")
    assert node.held == {}


@pytest.mark.parametrize("task_id", ["\ud800", "x" * 1_200_000], ids=["surrogate", "long"])
def test_a_message_of_any_id_runs_under_its_lock(
    new_task: NewTask, node: OneNode, task_id: str
) -> None:
    task = new_task()
    execute(message_of(task, id=task_id))
    assert len(task.runs) == 1
    assert node.held == {}


# --- another copy has run -------------------------------------------------------------------------


def test_a_copy_of_a_message_that_has_run_is_discarded(
    new_task: NewTask, node: OneNode, published: Any, log: Any
) -> None:
    task = new_task()
    node.done.add(("t", MARK))
    deliver(task, **CARRIED)
    assert task.AsyncResult("task-1").state == "PENDING"
    assert (task.runs, published, node.held) == ([], [], {})
    line = "message handled by another copy, copy discarded key=t task=t task_id=task-1"
    assert ("INFO", line) in log()


def test_a_discarded_copy_releases_a_reservation_of_its_own(
    new_task: NewTask, node: OneNode
) -> None:
    """A tick that beat published twice has two."""
    task = new_task(lock_lifetime="until_executed")
    node.done.add(("t", MARK))
    node.held["t"] = WAITING, 1e9
    deliver(task, **{**CARRIED, **Reservation("t", WAITING).header})
    assert (task.runs, node.held) == ([], {})


@pytest.mark.parametrize("policy", ["coalesce", "skip"])
def test_one_more_run_that_is_refused_leaves_the_result_of_the_first(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """It is for messages that were skipped; the policy may have changed since."""
    task, release = new_task(lock_on_conflict=policy), node.release_owner
    node.done.add(("t", MARK))
    node.held |= {"t": (HOLDER, 1e9), "t%next": (WAITING, 1e9)}

    def release_owner(key: str, owner: str) -> bool:
        was_held = release(key, owner)
        node.held["t%next"] = HOLDER, 1e9
        return was_held

    monkeypatch.setattr(node, "release_owner", release_owner)
    deliver(task, **{**CARRIED, **Reservation("t%next", WAITING).header})
    assert task.AsyncResult("task-1").state == "PENDING"
    assert (task.runs, node.owner_of("t%next")) == ([], HOLDER)


@pytest.mark.parametrize(("done_for", "is_parked"), [(10.0, True), (11.0, False)])
def test_a_copy_is_parked_while_the_first_may_not_have_ended(
    new_task: NewTask, node: OneNode, published: Any, done_for: float, is_parked: bool
) -> None:
    task = new_task()
    node.done.add(("t", MARK))
    node.done_for = done_for
    deliver(task, **CARRIED)
    assert [headers[COPY_HEADER] for headers in published] == ([True] if is_parked else [])
    assert task.runs == []


def test_a_parked_copy_is_ignored_because_of_the_mark(new_task: NewTask, node: OneNode) -> None:
    node.done.add(("t", MARK))
    node.done_for = 10.0
    with pytest.raises(Ignore) as caught:
        execute(message_of(new_task(), headers=CARRIED))
    assert isinstance(caught.value.__cause__, AlreadyDone)


# --- interrupted before the body ------------------------------------------------------------------


class Struck(OneNode):
    """Is interrupted by a time limit while a message waits for its lock, or as it is granted."""

    def __init__(self, *, grants: bool) -> None:
        super().__init__()
        self._grants = grants

    def acquire_for_task(self, *args: Any, **how: Any) -> Lease:
        if self._grants:
            super().acquire_for_task(*args, **how)
        raise SoftTimeLimitExceeded


@pytest.mark.parametrize("grants", [True, False])
def test_a_time_limit_before_the_body_leaves_nothing_locked(
    app: Celery, new_task: NewTask, grants: bool
) -> None:
    node = Struck(grants=grants)
    app_lock._redlocks[app] = node
    node.held["t"] = WAITING, 1e9
    task = new_task(lock_lifetime="until_executed")
    deliver(task, **Reservation("t", WAITING).header)
    assert task.AsyncResult("task-1").state == "FAILURE"
    assert node.held == {}


# --- after the body -------------------------------------------------------------------------------


def test_a_body_that_fails_leaves_no_grant_to_discard(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would be a round trip more; its run has released the lock."""
    released: list[str] = []
    monkeypatch.setattr(node, "release", lambda lease, **_: released.append(lease.owner))
    monkeypatch.setattr(node, "release_owner", lambda _key, owner: released.append(owner))

    def body(_: Lease | None) -> None:
        raise ValueError("no luck")

    with pytest.raises(ValueError, match="no luck"):
        execute(replace(message_of(new_task()), body=body))
    assert len(released) == 1


class StruckOnce(OneNode):
    """Is interrupted by a time limit in one request, before or after the node has executed it."""

    def __init__(self, request: str, *, is_executed: bool) -> None:
        super().__init__()
        self._request, self._is_executed = request, is_executed

    def _strike(self, request: str, execute: Callable[[], T]) -> T:
        if request != self._request:
            return execute()
        self._request = ""
        if self._is_executed:
            execute()
        raise SoftTimeLimitExceeded

    def reserve(self, *args: Any, **how: Any) -> Lease:
        return self._strike("reserve", lambda: OneNode.reserve(self, *args, **how))

    def release(self, *args: Any, **how: Any) -> None:
        self._strike("release", lambda: OneNode.release(self, *args, **how))

    def release_owner(self, *args: Any, **how: Any) -> bool:
        return self._strike("release_owner", lambda: OneNode.release_owner(self, *args, **how))


@pytest.mark.parametrize("is_executed", [False, True])
@pytest.mark.parametrize(
    ("request_", "left"), [("release", None), ("reserve", "told:task-1"), ("release_owner", None)]
)
def test_the_lock_is_free_before_a_limit_in_its_release_is_stored(
    app: Celery, new_task: NewTask, request_: str, left: str | None, is_executed: bool
) -> None:
    """What Celery publishes as it stores that may need the lock."""
    app_lock._redlocks[app] = node = StruckOnce(request_, is_executed=is_executed)
    task = new_task(acks_late=True, lock_lifetime="until_executed")
    node.held["t"] = WAITING, 1e9
    headers: dict[str, Any] = {**Reservation("t", WAITING).header}
    if request_ == "release_owner":  # it is delivered too often, and does not run
        headers["x-delivery-count"] = 4

    def body(_: Lease | None) -> None:
        if left and (run := current.get()):
            run.hand_over_to(left, 60.0)

    message = message_of(task, redelivered=request_ == "release_owner", headers=headers)
    message = replace(message, body=body)
    with pytest.raises(SoftTimeLimitExceeded):
        execute(message, max_deliveries=3)
    assert node.owner_of("t") == left


def test_a_message_requeued_to_be_counted_keeps_its_reservation(
    new_task: NewTask, node: OneNode
) -> None:
    task = new_task(acks_late=True, lock_lifetime="until_executed")
    node.held["t"] = WAITING, 1e9
    message = message_of(task, redelivered=True, headers=Reservation("t", WAITING).header)
    with pytest.raises(Ignore):
        execute(message, max_deliveries=3)
    assert node.owner_of("t") == WAITING


def test_a_message_delivered_too_often_releases_its_reservation(
    new_task: NewTask, node: OneNode
) -> None:
    task = new_task(acks_late=True, lock_lifetime="until_executed")
    node.held["t"] = WAITING, 1e9
    headers = {**Reservation("t", WAITING).header, "x-delivery-count": 4}
    with pytest.raises(Reject):
        execute(message_of(task, headers=headers), max_deliveries=3)
    assert node.held == {}


@pytest.mark.parametrize("policy", ["skip", "complete", "raise"])
@pytest.mark.parametrize("lifetime", ["until_executed", "until_executing", "until_expired"])
def test_a_reservation_is_released_once(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch, policy: str, lifetime: str
) -> None:
    released: list[str] = []

    def release_owner(_key: str, owner: str) -> bool:
        released.append(owner)
        return True

    monkeypatch.setattr(node, "release_owner", release_owner)
    node.held["t"] = HOLDER, 1e9
    task = new_task(lock_lifetime=lifetime, lock_on_conflict=policy)
    deliver(task, **Reservation("t", WAITING).header)
    assert released == [WAITING]


@pytest.mark.parametrize("late", [True, False])
def test_a_message_that_cannot_go_back_keeps_its_reservation_if_it_comes_again(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def exit_(*_: Any, **__: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(requeue, "requeue_message", exit_)
    node.held["t"] = HOLDER, 1e9
    node.held["t:7"] = WAITING, 1e9
    options = {"lock_lifetime": "until_executed", "lock_on_conflict": "reschedule"}
    message = message_of(
        new_task(acks_late=late, **options), headers=Reservation("t:7", WAITING).header
    )
    with pytest.raises(SystemExit):
        execute(message)
    assert ("t:7" in node.held) is late


def test_a_message_may_be_delivered_any_number_of_times(new_task: NewTask) -> None:
    assert execute(message_of(new_task(acks_late=True), redelivered=True)) == "done"


def test_a_message_put_back_before_its_body_keeps_its_reservation(
    app: Celery, new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_back(*_: Any, **__: Any) -> Lease:
        raise Reject("the worker stops", requeue=True)

    node = OneNode()
    monkeypatch.setattr(node, "acquire_for_task", put_back)
    app_lock._redlocks[app] = node
    node.held["t"] = WAITING, 1e9
    deliver(new_task(lock_lifetime="until_executed"), **Reservation("t", WAITING).header)
    assert node.owner_of("t") == WAITING


# --- a run that lost its lease to a copy ----------------------------------------------------------


def test_a_run_whose_lease_a_copy_has_is_requeued(app: Celery, node: OneNode) -> None:
    copy = new_owner("task-1", publication=NONCE)

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], lock_on_lost="continue")
    def body(self: SingletonTask) -> None:
        assert self.lease
        self.lease.backing.is_lost = True
        node.held["t"] = copy, 1e9

    ended = deliver(body, **CARRIED)
    assert ended.info.state == "REJECTED"
    assert ended.info.retval.requeue
    assert body.AsyncResult("task-1").state == "PENDING"
    assert node.owner_of("t") == copy


def test_an_execution_is_known_until_postrun_and_then_forgotten(new_task: NewTask) -> None:
    task = new_task()
    # A traceback may keep another test's request alive.
    before = list(executions)
    deliver(task)
    assert not [request for request in executions if request not in before]
