"""A message that is delivered more than once neither runs twice nor gets lost."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from celery import chain
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.redelivery import (
    Watch,
    capture,
    deliver,
    deliver_copy,
    messages,
    redeliver,
    wait_until_settled,
)
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.processes.workers import is_alive, kill_process
from tests.support.versions import RETRIES_LOST_TASKS

POLICIES = [
    "plain", "completing", "raising", "rescheduling", "coalescing", "waiting", "waiting_briefly",
    "until_executed", "until_and_while",
]  # fmt: skip


@pytest.fixture(scope="module")
def late(new_project: NewProject) -> Project:
    """Messages are acknowledged when the task has ended. The tests say which is redelivered."""
    project = new_project("redelivered", task_acks_late=True, worker_prefetch_multiplier=1)
    project.start_worker(concurrency=len(POLICIES) + 3)
    return project


@pytest.fixture(scope="module")
def early(new_project: NewProject) -> Project:
    """Messages are acknowledged when the task begins."""
    project = new_project("redelivered")
    project.start_worker(concurrency=3)
    return project


@pytest.fixture
def project(late: Project) -> Project:
    return late


def runs(project: Project, task_id: str) -> list[Note]:
    return project.notes("begin", task_id=task_id)


def result_of(project: Project, task_id: str) -> AsyncResult[Any]:
    return project.app.AsyncResult(task_id)


def wait_until_parked(project: Project, task_id: str, *, count: int = 1) -> None:
    line = f"task_id={task_id} holder_task_id={task_id} .*outcome=parked"
    eventually(
        lambda: sum(len(worker.lines(line)) for worker in project.workers) >= count,
        f"{task_id} is parked {count} times",
    )


def run_with_a_copy(project: Project, task: Any, *args: Any, **options: Any) -> str:
    """Start a run, let its message be redelivered while it runs, and return the task's id."""
    task_id = str(task.apply_async(args, **options).id)
    project.run_of(task_id)
    redeliver(project, task_id)
    wait_until_parked(project, task_id)
    return task_id


# --- while the first copy runs --------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_copies(late: Project) -> dict[str, tuple[str, Watch]]:
    """Under each policy a run, during which its message came again; and what was seen of it."""
    seen = {}
    with ExitStack() as watching:
        for name in POLICIES:
            message = capture(late, getattr(late.tasks, name), name, "policies")
            watch = watching.enter_context(Watch(late, message.task_id))
            seen[name] = message.task_id, watch
            deliver(late, message)
        for task_id, _ in seen.values():
            late.run_of(task_id)
            redeliver(late, task_id)
        for task_id, _ in seen.values():
            # It would go on like this for ever; none of the tasks may be retried even once.
            wait_until_parked(late, task_id, count=3)
        late.open("policies")
        wait_until_settled(late)
    return seen


@pytest.mark.long
@pytest.mark.parametrize("name", POLICIES)
def test_a_copy_leaves_no_trace_whatever_the_policy(
    project: Project, with_copies: dict[str, tuple[str, Watch]], name: str
) -> None:
    task_id, watch = with_copies[name]
    [run] = runs(project, task_id)
    assert watch.states == ["SUCCESS"]
    assert result_of(project, task_id).get(timeout=PATIENCE) == run.token
    # It is acknowledged only when it has been published again.
    assert watch.most <= 2


@pytest.mark.parametrize("name", ["failing", "unforgiven", "tracked"])
def test_a_failure_stays_what_is_stored(project: Project, key: str, name: str) -> None:
    message = capture(project, getattr(project.tasks, name), key, key)
    with Watch(project, message.task_id) as watch:
        deliver(project, message)
        project.run_of(message.task_id)
        redeliver(project, message.task_id)
        wait_until_parked(project, message.task_id)
        project.open(key)
        wait_until_settled(project)
    assert watch.states == (["STARTED"] if name == "tracked" else []) + ["FAILURE"]
    assert len(runs(project, message.task_id)) == 1


def test_a_parked_copy_does_not_expire(project: Project, key: str) -> None:
    # Celery would store that the task was revoked, while it runs.
    message = capture(project, project.tasks.failing, key, key, expires=10)
    with Watch(project, message.task_id) as watch:
        deliver(project, message)
        run = project.run_of(message.task_id)
        redeliver(project, message.task_id)
        wait_until_parked(project, message.task_id)
        eventually(lambda: time.monotonic() > run.at + 11)
        project.open(key)
        wait_until_settled(project)
    assert watch.states == ["FAILURE"]


def test_the_next_step_of_a_chain_is_published_once(project: Project, key: str) -> None:
    last: Any = chain(project.tasks.plain.si(key, key), project.tasks.collect.si(key)).delay()
    step = last.parent
    project.run_of(step.id)
    redeliver(project, step.id)
    wait_until_parked(project, step.id)
    project.open(key)
    assert last.get(timeout=PATIENCE) == key
    wait_until_settled(project)
    assert len(project.notes("collect", results=key)) == 1


# --- after the first copy has ended ---------------------------------------------------------------


def test_a_copy_that_comes_late_ends_silently(project: Project, key: str) -> None:
    message = capture(project, project.tasks.plain, key)
    with Watch(project, message.task_id) as watch:
        deliver(project, message)
        result_of(project, message.task_id).get(timeout=PATIENCE)
        for _ in range(3):
            deliver_copy(project, message)
        wait_until_settled(project)
    assert watch.states == ["SUCCESS"]
    assert len(runs(project, message.task_id)) == 1


def test_a_first_delivery_slower_than_its_copy_ends_silently(project: Project, key: str) -> None:
    # It waited in one worker for a free process until the broker gave up on it; another worker,
    # which had one, was done sooner.
    message = capture(project, project.tasks.plain, key)
    deliver_copy(project, message)
    result_of(project, message.task_id).get(timeout=PATIENCE)
    deliver(project, message)
    wait_until_settled(project)
    assert len(runs(project, message.task_id)) == 1


@pytest.mark.parametrize("acks", ["late", "early"])
@pytest.mark.parametrize("order", [(deliver, deliver_copy), (deliver_copy, deliver)])
def test_with_an_eta_it_does_not_matter_which_copy_is_first(
    request: pytest.FixtureRequest, key: str, acks: str, order: Any
) -> None:
    project: Project = request.getfixturevalue(acks)
    message = capture(project, project.tasks.plain, key, countdown=0.5)
    for put in order:
        put(project, message)
        result_of(project, message.task_id).get(timeout=PATIENCE)
    wait_until_settled(project)
    assert len(runs(project, message.task_id)) == 1


def test_a_message_with_a_finished_ones_arguments_runs(project: Project, key: str) -> None:
    tokens = [project.tasks.plain.delay(key).get(timeout=PATIENCE) for _ in range(3)]
    assert tokens == sorted(set(tokens))


# --- the process dies -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deaths(late: Project) -> dict[str, AsyncResult[Any]]:
    """Tasks whose process was killed during the first run, by the test or by their time limit.

    Where the name says so, their message had been redelivered by then.
    """
    results = {}
    for name in (
        "precious", "precious, copied", "plain, copied", "stubborn, copied", "limited, copied",
        "limited_and_requeued",
    ):  # fmt: skip
        task, _, is_copied = name.partition(",")
        results[name] = result = getattr(late.tasks, task).delay(f"death {name}", "deaths")
        late.run_of(result.id)
        if is_copied:
            redeliver(late, result.id)
            wait_until_parked(late, result.id)
    for name, result in results.items():
        pid = late.run_of(result.id).pid
        if name.startswith("limited"):
            eventually(lambda pid=pid: not is_alive(pid), "the time limit strikes")  # type: ignore[misc]
        else:
            kill_process(pid)
    late.open("deaths")
    wait_until_settled(late)
    return results


@pytest.mark.parametrize("name", ["precious", "precious, copied", "limited_and_requeued"])
def test_a_killed_task_that_is_requeued_runs_again_once(
    project: Project, deaths: dict[str, AsyncResult[Any]], name: str
) -> None:
    task_id = deaths[name].id
    # A busy worker may take a message off the queue long before it notes that it has it.
    eventually(lambda: len(runs(project, task_id)) > 1, f"{task_id} runs again")
    wait_until_settled(project)
    first, second = runs(project, task_id)
    assert result_of(project, task_id).get(timeout=PATIENCE) == second.token
    assert first.token is not None
    assert second.token is not None
    assert second.token > first.token


@pytest.mark.parametrize(
    ("name", "error"), [("plain, copied", WorkerLostError), ("limited, copied", TimeLimitExceeded)]
)
def test_a_killed_task_stored_as_failed_is_not_run_by_its_copy(
    project: Project, deaths: dict[str, AsyncResult[Any]], name: str, error: type[Exception]
) -> None:
    # It would kill the next process, too, and so on.
    with pytest.raises(error):
        result_of(project, deaths[name].id).get(timeout=PATIENCE)
    assert len(runs(project, deaths[name].id)) == 1


def test_a_killed_task_that_is_retried_is_not_run_by_its_copy(
    project: Project, deaths: dict[str, AsyncResult[Any]]
) -> None:
    result = deaths["stubborn, copied"]
    if not RETRIES_LOST_TASKS:
        with pytest.raises(WorkerLostError):
            result_of(project, result.id).get(timeout=PATIENCE)
        assert len(runs(project, result.id)) == 1
        return
    assert [run.more["retries"] for run in runs(project, result.id)] == [0, 1]
    assert result_of(project, result.id).get(timeout=PATIENCE) == 1


@pytest.mark.skipif(not RETRIES_LOST_TASKS, reason="this Celery retries no lost task")
@pytest.mark.parametrize("acks", ["late", "early"])
def test_no_duplicate_comes_between_a_lost_run_and_its_retry(
    request: pytest.FixtureRequest, key: str, acks: str
) -> None:
    project: Project = request.getfixturevalue(acks)
    result = project.tasks.enduring.delay(key, key)
    kill_process(project.run_of(result.id).pid)
    calls = set()

    def is_retried() -> bool:
        calls.add(project.tasks.enduring.delay(key, key).id)
        return len(runs(project, result.id)) > 1

    eventually(is_retried, f"{result.id} is retried")
    assert calls == {result.id}
    project.open(key)
    assert result.get(timeout=PATIENCE) == 1


def test_a_death_after_the_body_loses_neither_result_nor_chain(project: Project, key: str) -> None:
    # The lock is released by then, and the release leaves a mark; but nothing is stored yet.
    last: Any = chain(project.tasks.dying.si(key), project.tasks.collect.si(key)).delay()
    assert last.get(timeout=PATIENCE) == key
    wait_until_settled(project)
    assert last.parent.state == "SUCCESS"
    assert len(project.notes("collect", results=key)) == 1
    assert len(runs(project, last.parent.id)) == 2


# --- retries and replacements ---------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["late", "early"])
@pytest.mark.parametrize("name", ["retrying", "autoretrying"])
def test_twenty_retries_without_a_pause_never_meet_each_other(
    request: pytest.FixtureRequest, key: str, acks: str, name: str
) -> None:
    project: Project = request.getfixturevalue(acks)
    result = getattr(project.tasks, name).delay(key, 20)
    assert result.get(timeout=PATIENCE) == 20
    wait_until_settled(project)
    assert [run.more["retries"] for run in runs(project, result.id)] == list(range(21))
    assert project.most_at_once(key=key) == 1
    assert project.workers[0].lines(f"lock conflict.*task_id={result.id}") == []


@pytest.mark.parametrize("acks", ["late", "early"])
def test_a_task_that_takes_its_own_place_never_meets_itself(
    request: pytest.FixtureRequest, key: str, acks: str
) -> None:
    project: Project = request.getfixturevalue(acks)
    result = project.tasks.replacing.delay(key, 20)
    assert result.get(timeout=PATIENCE) == "replaced"
    assert [run.more["times"] for run in runs(project, result.id)] == list(range(20, -1, -1))
    assert project.most_at_once(key=key) == 1
    assert project.workers[0].lines(f"lock conflict.*task_id={result.id}") == []


def test_a_copy_of_a_try_that_is_over_does_not_repeat_it(project: Project, key: str) -> None:
    message = capture(project, project.tasks.retrying, key, 2, key)
    deliver(project, message)
    project.wait_for_note("begin", task_id=message.task_id, retries=2)
    deliver_copy(project, message)
    project.workers[0].wait_for_line(
        f"message handled by another copy, copy discarded.*{message.task_id}"
    )
    project.open(key)
    wait_until_settled(project)
    assert [run.more["retries"] for run in runs(project, message.task_id)] == [0, 1, 2]
    assert result_of(project, message.task_id).state == "SUCCESS"


def test_a_copy_of_a_retry_waits_for_the_retry(project: Project, key: str) -> None:
    result = project.tasks.retrying.delay(key, 1, key)
    project.wait_for_note("begin", task_id=result.id, retries=1)
    redeliver(project, result.id)
    wait_until_parked(project, result.id)
    project.open(key)
    assert result.get(timeout=PATIENCE) == 1
    wait_until_settled(project)
    assert [run.more["retries"] for run in runs(project, result.id)] == [0, 1]


def test_a_copy_of_a_replacement_waits_for_the_replacement(project: Project, key: str) -> None:
    result = project.tasks.replacing.delay(key, 1, key)
    project.wait_for_note("begin", task_id=result.id, times=0)
    redeliver(project, result.id)
    wait_until_parked(project, result.id)
    project.open(key)
    assert result.get(timeout=PATIENCE) == "replaced"
    wait_until_settled(project)
    assert [run.more["times"] for run in runs(project, result.id)] == [1, 0]


def test_a_run_that_took_over_may_retry(project: Project, key: str) -> None:
    message = capture(project, project.tasks.retrying, key, 3)
    deliver_copy(project, message)
    assert result_of(project, message.task_id).get(timeout=PATIENCE) == 3
    wait_until_settled(project)
    assert messages(project) == []
    assert [run.more["retries"] for run in runs(project, message.task_id)] == [0, 1, 2, 3]


# --- the same task id, published again ------------------------------------------------------------


@pytest.mark.parametrize("acks", ["late", "early"])
@pytest.mark.parametrize("options", [{}, {"countdown": 0.3}])
def test_a_task_id_that_is_published_again_runs_each_time(
    request: pytest.FixtureRequest, key: str, acks: str, options: dict[str, Any]
) -> None:
    project: Project = request.getfixturevalue(acks)
    for count in range(1, 4):
        project.tasks.failing.apply_async((key,), task_id=f"again-{key}", **options)
        project.wait_for_note("end", task_id=f"again-{key}", count=count)
        wait_until_settled(project)
    assert len(runs(project, f"again-{key}")) == 3


def test_a_task_id_published_again_while_it_runs_is_a_conflict(project: Project, key: str) -> None:
    task_id = f"again-{key}"
    project.tasks.rescheduling.apply_async((key, key), task_id=task_id)
    project.run_of(task_id)
    project.tasks.rescheduling.apply_async((key,), task_id=task_id)
    project.workers[0].wait_for_line(f"task_id={task_id} .*outcome=reschedule")
    project.open(key)
    wait_until_settled(project)
    assert len(runs(project, task_id)) == 2
