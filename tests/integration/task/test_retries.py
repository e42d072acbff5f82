"""What a task holds from one attempt to the next."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import states

from celery_redlock.config.options import Lifetime
from celery_redlock.redlock.protocol.scripts import lock_keys
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.judges.lifetime_table import STAGES, Held
from tests.support.judges.nodes import PREFIX
from tests.support.processes.project import Project
from tests.support.versions import REJECT_IS_A_FAILURE

HOUR = 3600.0


@pytest.fixture(scope="module", params=["prefork", "threads"])
def project(new_project: NewProject, request: pytest.FixtureRequest) -> Project:
    project = new_project("lifetimes")
    project.start_worker(pool=request.param, concurrency=3)
    return project


@contextmanager
def sampled(project: Project, name: str) -> Iterator[list[int]]:
    """Look again and again, from outside, on how many nodes the lock `name` is held."""
    samples: list[int] = []
    is_over = threading.Event()
    key = lock_keys(PREFIX, name)[0]

    def sample() -> None:
        clients = [node.client() for node in project.nodes]
        while not is_over.is_set():
            samples.append(sum(client.exists(key) for client in clients))
        for client in clients:
            client.close()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        is_over.set()
        thread.join()


def test_there_is_no_gap_between_two_attempts(project: Project, key: str) -> None:
    task = project.tasks.retrying_tasks[Lifetime.UNTIL_EXECUTED]
    first = task.delay(key, 10, key)
    with sampled(project, f"{task.name}:{key}") as samples:
        while len(project.notes("begin", key=key)) < 11:
            assert task.delay(key, 0).id == first.id
    assert samples
    assert min(samples) >= 2
    assert {hold.task_id for hold in project.holds(key)} == {first.id}
    project.open(key)
    eventually(first.ready)
    assert first.result == 10
    assert project.most_at_once(key=key) == 1
    assert not project.is_held(key)


@pytest.mark.parametrize("lifetime", Lifetime)
def test_between_two_attempts_is_held_what_the_table_says(
    project: Project, key: str, lifetime: Lifetime
) -> None:
    task = project.tasks.retrying_tasks[lifetime]
    result = task.delay(key, 1, countdown=600)
    eventually(lambda: result.state == states.RETRY)
    is_held = STAGES[lifetime].between is Held.LOCK
    eventually(lambda: project.is_held(key) == is_held)
    assert {hold.task_id for hold in project.holds(key)} <= {result.id}
    if lifetime is Lifetime.UNTIL_EXECUTED:
        assert HOUR < project.held_for(key) <= HOUR + 600
        assert task.delay(key, 0).id == result.id


def test_a_task_that_celery_retries_keeps_its_lock(project: Project, key: str) -> None:
    task = project.tasks.autoretrying
    result = task.delay(key, 3, key)
    while len(project.notes("begin", key=key)) < 4:
        assert task.delay(key, 0).id == result.id
    project.open(key)
    eventually(result.ready)
    assert result.result == 3


def test_after_the_last_retry_the_lock_is_free(project: Project, key: str) -> None:
    project.tasks.autoretrying.delay(key, 99)
    # Not until a result is stored: a try whose next one has ended already stores over its FAILURE
    # that it retries.
    eventually(lambda: len(project.notes("begin", key=key)) == 4 and not project.is_held(key))


def test_a_retry_with_other_arguments_leaves_nothing_behind(project: Project, key: str) -> None:
    task, other = project.tasks.retrying_tasks[Lifetime.UNTIL_EXECUTED], f"other-{key}"
    result = task.delay(key, 1, args=(other, 1))
    eventually(result.ready)
    assert result.result == 1
    assert [note.more["key"] for note in project.notes("begin", task_id=result.id)] == [key, other]
    assert not project.is_held(key)


def test_a_task_that_goes_on_after_its_retry_hands_its_lock_over(
    project: Project, key: str
) -> None:
    result = project.tasks.going_on.delay(key)
    project.wait_for_note("end", key=key)
    eventually(lambda: project.is_held(key) and project.held_for(key) > HOUR)
    assert project.tasks.going_on.delay(key).id == result.id


def test_a_retry_that_is_revoked_gives_the_lock_back(project: Project, key: str) -> None:
    task, idle = project.tasks.retrying_tasks[Lifetime.UNTIL_EXECUTED], f"idle-{key}"
    result = task.delay(key, 1, queue=idle)
    eventually(lambda: result.state == states.RETRY)
    project.app.control.revoke(result.id, reply=True)
    project.app.control.add_consumer(idle, reply=True)
    eventually(lambda: result.state == states.REVOKED)
    eventually(lambda: not project.is_held(key))


def test_a_retry_that_can_not_be_published_gives_the_lock_back(project: Project, key: str) -> None:
    task = project.tasks.retrying_tasks[Lifetime.UNTIL_EXECUTED]
    result = task.delay(key, 1, args=(key, 1, None), serializer="no such")
    project.run_of(result.id)
    if REJECT_IS_A_FAILURE:  # which retry() raises
        eventually(result.ready)
        assert result.state == states.FAILURE
    eventually(lambda: not project.is_held(key))
    assert len(project.notes("begin", key=key)) == 1


@pytest.mark.parametrize("lifetime", Lifetime)
def test_a_task_may_replace_itself(project: Project, key: str, lifetime: Lifetime) -> None:
    result = project.tasks.replacing_tasks[lifetime].delay(key, 2)
    eventually(result.ready)
    assert result.result == 2
    assert len(project.notes("begin", key=key)) == 3


def test_what_a_task_replaced_itself_with_is_no_copy_of_it(project: Project, key: str) -> None:
    result = project.tasks.replacing_tasks[Lifetime.WHILE_EXECUTING].delay(key, 1, key)
    # The new message arrives, with the same id, while its predecessor cleans up.
    project.workers[0].wait_for_line(f"{key}.*outcome=parked")
    project.open(key)
    eventually(result.ready)
    assert result.result == 1
    assert project.most_at_once(key=key) == 1
