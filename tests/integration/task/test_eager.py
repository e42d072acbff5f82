"""Singleton tasks that run at once, in the caller's process: `apply()` and `task_always_eager`."""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

import pytest
from celery import chain, chord, group

from celery_redlock import (
    DuplicateTask,
    Lease,
    LockHeld,
    QuorumUnavailable,
    Redlock,
    SingletonTask,
    current_lease,
)
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import eventually
from tests.support.processes.project import Project

Hold = Callable[[Any, str], AbstractContextManager[Lease]]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("locked", task_always_eager=True)


@pytest.fixture
def hold(project: Project) -> Iterator[Hold]:
    """Hold the lock of a task and key, as another task whose id is "holder"."""
    redlock = Redlock(project.nodes.urls, node_timeout=2.0, restart_guard=False)

    @contextmanager
    def lock(task: Any, key: str) -> Iterator[Lease]:
        with redlock.lock(f"{task.name}:{key}", label="holder") as lease:
            yield lease

    yield lock
    redlock.close()


# --- it is locked ---------------------------------------------------------------------------------


def test_an_eager_task_has_its_token_in_every_way(project: Project, key: str) -> None:
    result = project.tasks.telling.delay(key)
    assert result.state == "SUCCESS"
    assert len(set(result.get())) == 1
    assert isinstance(result.get()[0], int)
    assert current_lease() is None
    assert project.tasks.telling.fencing_token is None


def test_apply_locks_without_the_setting(new_project: NewProject) -> None:
    project = new_project("locked")
    assert isinstance(project.tasks.skipping.apply(("key",)).get(), int)


def test_the_lock_is_held_during_the_body_and_free_after_it(project: Project, key: str) -> None:
    task_id = str(uuid.uuid4())
    thread = threading.Thread(
        target=project.tasks.skipping.apply_async, args=((key, key),), kwargs={"task_id": task_id}
    )
    thread.start()
    project.run_of(task_id)
    assert project.votes(task_id) >= 2
    duplicate = project.tasks.skipping.delay(key)
    project.open(key)
    thread.join()
    assert duplicate.state == "REVOKED"
    assert duplicate.result.holder == task_id
    assert project.holds(key) == []


def test_tokens_grow_from_run_to_run(project: Project, key: str) -> None:
    tokens = [project.tasks.skipping.delay(key).get() for _ in range(20)]
    assert tokens == sorted(set(tokens))


def test_a_canvas_of_one_key_never_meets_itself(project: Project, key: str) -> None:
    step = project.tasks.skipping.si(key)
    assert isinstance(chain(step, step, step).delay().get(), int)
    assert len(group(step, step).delay().get()) == 2
    assert isinstance(chord([step, step], step).delay().get(), int)
    assert project.tasks.skipping.apply_async((key,), link=step).state == "SUCCESS"


def test_a_failed_task_has_let_go(project: Project, key: str) -> None:
    for _ in range(2):
        assert project.tasks.failing.delay(key).state == "FAILURE"
    assert project.holds(key) == []


def test_a_retry_never_meets_its_own_earlier_run(project: Project, key: str) -> None:
    result = project.tasks.retrying.delay(key)
    assert result.state == "SUCCESS"
    assert isinstance(result.get()[0], int)
    assert len(project.notes("begin", key=key)) == 4


def test_autoretry_runs_as_often_as_it_says(project: Project, key: str) -> None:
    result = project.tasks.failing_after_a_reschedule.delay(key)
    assert result.state == "FAILURE"
    assert len(project.notes("begin", key=key)) == 3


@pytest.mark.parametrize("task", ["counting_down", "counting_down_on_a_base"])
def test_a_recursive_call_is_a_plain_one_within_the_same_run(project: Project, task: str) -> None:
    tokens = getattr(project.tasks, task).delay(4).get()
    assert len(tokens) == 5
    assert len(set(tokens)) == 1
    assert isinstance(tokens[0], int)


def test_another_task_called_directly_is_a_plain_function(project: Project, key: str) -> None:
    mine, its, mine_after = project.tasks.calling_another.delay(key).get()
    assert mine == its == mine_after


def test_a_base_whose_call_leaves_ours_out_does_not_run_unlocked(project: Project) -> None:
    class InContext(SingletonTask):
        """As Flask's documentation has it, with the base class exchanged."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.run(*args, **kwargs)

    @project.app.task(base=InContext, bind=True)
    def task(self: SingletonTask, *, fencing_token: int | None) -> list[int | None]:
        return [self.fencing_token, fencing_token]

    [token, given] = task.delay().get()
    assert isinstance(token, int)
    assert given == token
    assert task() == [None, None]


@pytest.mark.parametrize("when", ["mixin", "later"])
def test_a_task_class_that_skips_our_call_does_not_run_unlocked(
    project: Project, when: str
) -> None:
    class InContext:
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return cast(Any, self).run(*args, **kwargs)

    if when == "mixin":

        class Base(InContext, SingletonTask):
            abstract = True
    else:

        class Base(SingletonTask):  # type: ignore[no-redef]
            abstract = True

        setattr(Base, "__call__", InContext.__call__)  # noqa: B010

    @project.app.task(base=Base, bind=True, name=f"{__name__}.{when}")
    def task(self: SingletonTask) -> int | None:
        return self.fencing_token

    assert isinstance(task.delay().get(), int)
    assert task() is None


def test_min_hold_keeps_the_lock_after_the_end(project: Project, key: str) -> None:
    result = project.tasks.lingering.delay(key)
    result.get()
    assert project.tasks.lingering.delay(key).result.holder == result.id
    eventually(lambda: not project.holds(key))
    assert project.tasks.lingering.delay(key).state == "SUCCESS"


# --- conflicts ------------------------------------------------------------------------------------


def test_skip_ends_as_revoked_with_a_duplicate_task(project: Project, key: str, hold: Hold) -> None:
    task = project.tasks.skipping
    with hold(task, key) as lease:
        result = task.delay(key)
        assert result.state == "REVOKED"
        assert result.id
        with pytest.raises(DuplicateTask) as caught:
            result.get()
        assert lease.remaining() > 0
        lease.ensure()
    assert caught.value.holder == "holder"
    assert caught.value.key == f"{task.name}:{key}"
    assert 0 < caught.value.remaining <= 30
    assert project.notes("begin", key=key) == []


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # by Celery, to store a result
def test_a_skipped_task_is_stored_where_eager_results_are(
    new_project: NewProject, key: str, hold: Hold
) -> None:
    project = new_project("locked", task_always_eager=True, task_store_eager_result=True)
    task = project.tasks.skipping
    with hold(task, key):
        stored: Any = project.app.AsyncResult(task.delay(key).id)
    assert stored.state == "REVOKED"
    assert isinstance(stored.result, DuplicateTask)


def test_complete_ends_with_the_given_result(project: Project, key: str, hold: Hold) -> None:
    with hold(project.tasks.completing, key):
        result = project.tasks.completing.delay(key)
    assert result.state == "SUCCESS"
    assert result.get() == ["taken"]


def test_raise_ends_as_a_failure(project: Project, key: str, hold: Hold) -> None:
    with hold(project.tasks.raising, key):
        result = project.tasks.raising.delay(key)
        with pytest.raises(LockHeld):
            project.tasks.raising.apply((key,), throw=True)
    assert result.state == "FAILURE"
    with pytest.raises(LockHeld) as caught:
        result.get()
    assert caught.value.holder is not None
    assert caught.value.holder.startswith("holder@")


@pytest.mark.parametrize("task", ["waiting", "rescheduling_long"])
def test_wait_and_reschedule_run_when_the_lock_is_free(
    project: Project, key: str, hold: Hold, task: str
) -> None:
    results = []
    thread = threading.Thread(
        target=lambda: results.append(getattr(project.tasks, task).delay(key))
    )
    with hold(getattr(project.tasks, task), key):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        assert project.notes("begin", key=key) == []
    thread.join()
    [result] = results
    assert result.state == "SUCCESS"


@pytest.mark.parametrize("task", ["waiting_briefly", "rescheduling"])
def test_wait_and_reschedule_in_vain_end_as_skip(
    project: Project, key: str, hold: Hold, task: str
) -> None:
    # There is no queue to go back to: reschedule waits for a ttl, here of 8 s.
    with hold(getattr(project.tasks, task), key):
        result = getattr(project.tasks, task).delay(key)
    assert result.state == "REVOKED"
    assert isinstance(result.result, DuplicateTask)


def test_an_eager_task_called_by_itself_is_skipped(project: Project, key: str) -> None:
    # It calls itself by delay() from its own body, which runs at once, within the lock.
    outer, inner = project.tasks.nesting.delay(key).get()
    assert isinstance(outer, int)
    assert inner == "REVOKED"


# --- switched off, or without a quorum ------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely(new_project: NewProject, new_nodes: NewNodes) -> Project:
    """A project whose lock nodes are gone."""
    nodes = new_nodes(3)
    project = new_project("locked", nodes=nodes, task_always_eager=True)
    for node in nodes:
        node.kill()
    return project


@pytest.mark.parametrize("task", ["strict", "patient"])
def test_without_a_quorum_raise_and_reschedule_fail(lonely: Project, task: str) -> None:
    # There is no queue in which a rescheduled task could wait for the nodes.
    result = getattr(lonely.tasks, task).delay("key")
    assert result.state == "FAILURE"
    with pytest.raises(QuorumUnavailable, match="0 of 3 nodes answered, 2 are needed"):
        result.get()
    assert lonely.notes("begin") == []


def test_without_a_quorum_run_runs_without_a_lock(lonely: Project) -> None:
    assert lonely.tasks.reckless.delay("key").get() == [None, None, True]
    assert lonely.tasks.reckless.delay("key", 3).get() == [None, None, True]


def test_switched_off_nothing_is_locked_and_no_node_is_needed(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    nodes = new_nodes(1)
    project = new_project("locked", nodes=nodes, task_always_eager=True, redlock_enabled=False)
    nodes.stop()
    assert project.tasks.reckless.delay("key").get() == [None, None, True]
    assert project.tasks.counting_down.delay(2).get() == [None, None, None]
    assert project.tasks.nesting.delay("key").get() == [None, "SUCCESS"]
    assert project.tasks.skipping.fencing_token is None
    # What can't be locked by need not be, then.
    assert project.tasks.anything.delay(math.nan).state == "SUCCESS"
    assert project.tasks.anything.apply((object(),)).state == "SUCCESS"


def test_it_can_be_switched_off_and_on_at_any_time(project: Project, key: str) -> None:
    try:
        project.app.conf.redlock_enabled = False
        assert project.tasks.skipping.delay(key).get() is None
    finally:
        project.app.conf.redlock_enabled = True
    assert isinstance(project.tasks.skipping.delay(key).get(), int)
