"""What becomes of a reservation whose message is discarded, or ends before its body begins."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import states

from celery_redlock import singleton_task
from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.conftest import NewNodes, NewProject
from tests.integration.publish.conftest import RESERVING
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project
from tests.support.processes.workers import kill_process
from tests.support.versions import REJECT_IS_A_FAILURE

HOUR = 3600.0
GIVES_BACK = [lifetime for lifetime in RESERVING if lifetime is not Lifetime.UNTIL_EXPIRED]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("lifetimes")
    project.start_worker(pool="prefork", concurrency=2)
    return project


@pytest.fixture
def idle(key: str) -> str:
    """The name of a queue from which nobody takes until `consume`."""
    return f"idle-{key}"


def consume(project: Project, queue: str) -> None:
    project.app.control.add_consumer(queue, reply=True)


def waiting(project: Project, lifetime: Lifetime, key: str, **options: Any) -> Any:
    """Publish a message that has its lock reserved, or its throttle, or its place in line."""
    task = project.tasks.tasks[lifetime, OnConflict.SKIP]
    result = task.apply_async((key,), **options)
    assert project.is_held(key)
    assert {hold.task_id for hold in project.holds(key)} == {result.id}
    return result


# --- discarded ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", GIVES_BACK)
def test_a_message_that_expires_unstarted_releases_its_lock(
    project: Project, key: str, idle: str, lifetime: Lifetime
) -> None:
    result = waiting(project, lifetime, key, queue=idle, expires=HOUR)
    with changed(project, idle) as message:
        message["headers"]["expires"] = "2020-01-01T00:00:00+00:00"
    consume(project, idle)
    eventually(lambda: result.state == states.REVOKED)
    eventually(lambda: not project.is_held(key))
    assert project.notes("begin", key=key) == []


@pytest.mark.parametrize("options", [{}, {"countdown": 2}])
@pytest.mark.parametrize("lifetime", GIVES_BACK)
def test_a_message_revoked_unstarted_releases_its_lock(
    project: Project, key: str, idle: str, lifetime: Lifetime, options: dict[str, Any]
) -> None:
    result = waiting(project, lifetime, key, queue=idle, **options)
    project.app.control.revoke(result.id, reply=True)
    consume(project, idle)
    eventually(lambda: result.state == states.REVOKED)
    eventually(lambda: not project.is_held(key))
    assert project.notes("begin", key=key) == []


@pytest.mark.parametrize("is_running", [False, True])
def test_a_throttle_is_not_given_back_whatever_happens(
    project: Project, key: str, idle: str, is_running: bool
) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXPIRED, OnConflict.SKIP]
    result = task.apply_async((key, key), queue=idle)
    if is_running:
        consume(project, idle)
        project.run_of(result.id)
        project.app.control.revoke(result.id, terminate=True, reply=True)
    else:
        project.app.control.revoke(result.id, reply=True)
        consume(project, idle)
    eventually(lambda: result.state == states.REVOKED)
    # What would be given back has been by the time that the worker takes the next message.
    project.tasks.plain.apply_async((key,), queue=idle).get(timeout=PATIENCE)
    assert project.is_held(key)
    assert {hold.task_id for hold in project.holds(key)} == {result.id}
    assert task.delay(key).id == result.id


def test_a_task_that_is_terminated_gives_its_lock_back(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
    result = task.delay(key, key)
    project.run_of(result.id)
    project.app.control.revoke(result.id, terminate=True, signal="SIGKILL")
    eventually(lambda: not project.is_held(key))
    # Celery may notice seconds later that the process is dead.
    eventually(lambda: result.state == states.REVOKED)


def test_a_message_of_an_unknown_task_releases_its_lock(project: Project, key: str) -> None:
    @singleton_task(app=project.app, name=f"new.{key}", lock_lifetime="until_executed")
    def new() -> None: ...

    result: Any = new.delay()
    assert project.workers[0].wait_for_line(f"unregistered task of type 'new.{key}'")
    eventually(lambda: not project.votes(result.id))


def test_an_unreadable_message_releases_its_lock(project: Project, key: str, idle: str) -> None:
    waiting(project, Lifetime.UNTIL_EXECUTED, key, queue=idle)
    with changed(project, idle) as message:
        message["headers"]["eta"] = "some day"
    consume(project, idle)
    eventually(lambda: not project.is_held(key))


def test_a_message_that_can_not_be_decoded_releases_its_lock(
    project: Project, key: str, idle: str
) -> None:
    waiting(project, Lifetime.UNTIL_EXECUTED, key, queue=idle)
    with changed(project, idle) as message:
        message["body"] = base64.b64encode(b"[").decode()
    consume(project, idle)
    eventually(lambda: not project.is_held(key))


@contextmanager
def changed(project: Project, queue: str) -> Iterator[dict[str, Any]]:
    """Change the one message that waits in a queue."""
    [message] = project.messages(queue)
    with project.app.connection_for_write() as connection:
        client: Any = connection.default_channel
        client.client.delete(queue)
        yield message
        client.client.lpush(queue, json.dumps(message))


@pytest.mark.parametrize("lifetime", GIVES_BACK)
def test_a_message_with_refused_arguments_releases_its_lock(
    project: Project, key: str, idle: str, lifetime: Lifetime
) -> None:
    result = waiting(project, lifetime, key, queue=idle)
    with changed(project, idle) as message:
        _, kwargs, embed = json.loads(base64.b64decode(message["body"]))
        body = json.dumps([[key, None, "as before the last deployment"], kwargs, embed])
        message["body"] = base64.b64encode(body.encode()).decode()
    consume(project, idle)
    eventually(result.ready)
    assert isinstance(result.result, TypeError)
    eventually(lambda: not project.is_held(key))


# --- ended before the body ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raises", "rejected", "killed"])
def test_what_ends_before_its_body_begins_gives_its_lock_back(
    project: Project, key: str, how: str
) -> None:
    result = project.tasks.doomed.delay(key, how=how)
    is_failure = how != "rejected" or REJECT_IS_A_FAILURE
    if is_failure:
        eventually(lambda: result.state == states.FAILURE)
    eventually(lambda: not project.is_held(key))
    assert project.notes("begin", key=key) == []
    assert result.state == (states.FAILURE if is_failure else states.PENDING)


def test_what_is_retried_before_its_body_begins_keeps_its_lock(project: Project, key: str) -> None:
    result = project.tasks.doomed.delay(key, how="retried")
    eventually(lambda: result.state == states.RETRY)
    last = project.tasks.plain.delay(key)
    last.get(timeout=PATIENCE)
    assert project.is_held(key)
    assert {hold.task_id for hold in project.holds(key)} == {result.id}


def test_a_timeout_while_waiting_releases_the_pending_slot(
    project: Project, key: str, idle: str
) -> None:
    task = project.tasks.impatient
    holder = task.apply_async((key, key), soft_time_limit=60)
    project.run_of(holder.id)
    waits = task.apply_async((key,), queue=idle)
    assert task.delay(key).id == waits.id
    consume(project, idle)
    eventually(lambda: waits.state == states.FAILURE)
    eventually(lambda: not project.votes(waits.id))
    project.open(key)


def test_what_is_killed_while_it_waits_gives_its_place_back(project: Project, key: str) -> None:
    task = project.tasks.impatient
    holder = task.apply_async((key, key), soft_time_limit=60)
    begun = project.run_of(holder.id)
    waits = task.apply_async((key,), soft_time_limit=60)
    project.wait_for_note("taken", task_id=waits.id)
    [child] = {note.pid for note in project.notes("taken", task_id=waits.id)}
    assert child != begun.pid
    assert task.delay(key).id == waits.id
    kill_process(child)
    eventually(lambda: waits.state == states.FAILURE)
    eventually(lambda: not project.votes(waits.id))
    project.open(key)


# --- an outage ------------------------------------------------------------------------------------


def test_a_reservation_not_released_at_the_start_ends_later(
    new_project: NewProject, new_nodes: NewNodes
) -> None:
    """It ends with the body."""
    nodes = new_nodes(3, "--appendonly", "yes", "--appendfsync", "always")
    project = new_project("lifetimes", nodes=nodes)
    worker = project.start_worker(pool="threads", concurrency=2)
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTING, OnConflict.SKIP]
    result = task.apply_async(("key", "gate"), queue="idle")
    for node in nodes[:2]:
        node.kill()
    consume(project, "idle")
    project.run_of(result.id)
    assert worker.lines("reservation not released before the body, released after it")
    for node in nodes[:2]:
        node.start()
    assert task.delay("key").id == result.id, "they remember it"
    # When this has run, the worker has found them again.
    project.tasks.tasks[Lifetime.WHILE_EXECUTING, OnConflict.SKIP].delay("other").get(
        timeout=PATIENCE
    )
    project.open("gate")
    assert result.get(timeout=PATIENCE) == result.id
    assert task.delay("key").id != result.id
