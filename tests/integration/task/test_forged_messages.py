"""Messages that somebody wrote by hand: no lock is switched off, freed or taken through them."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult
from kombu import Producer

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.nodes import holders_on
from tests.support.processes.project import Project

SURROGATE = "\ud800"
NOBODY = f"{'2' * 32}~:nobody@host"
SWITCHES = [
    {name: value}
    for name in ("redlock_run", "called_directly", "_protected", "is_eager")
    for value in (None, 0, "", "x", True)
]


@pytest.fixture(scope="module", params=["prefork", "threads"])
def project(request: pytest.FixtureRequest, new_project: NewProject) -> Project:
    project = new_project("lifetimes")
    project.start_worker(pool=request.param, concurrency=4)
    return project


def forge(
    project: Project, name: str, key: str, *args: Any, embed: Any = None, kwargs: Any = None,
    **headers: Any,
) -> AsyncResult[Any]:  # fmt: skip
    """Publish a message of one's own making; return its result."""
    task_id = headers.get("id", uuid.uuid4().hex)
    body = [[key, *args], kwargs or {}, {"callbacks": None, "errbacks": None, **(embed or {})}]
    headers = {"lang": "py", "task": name, "id": task_id, **headers}
    with project.app.connection_for_write() as connection:
        producer = Producer(connection)
        producer.publish(body, serializer="json", routing_key=project.queue, headers=headers)
    return AsyncResult(task_id, app=project.app)


def held(project: Project, task: Any, key: str) -> tuple[Any, str]:
    """Have a task run that holds its key until the gate is opened; return its result and owner."""
    result = task.delay(key, key)
    project.run_of(result.id)
    return result, owner_of(project, f"{task.name}:{key}")


def owner_of(project: Project, name: str) -> str:
    """Return the owner that a majority of the nodes names."""
    [(owner, count)] = Counter(holders_on(project.nodes, name)).most_common(1)
    assert owner is not None
    assert count >= 2
    return owner


def until_idle(project: Project, running: int) -> None:
    """Wait until the worker has dealt with all messages but those that run."""

    def is_idle() -> bool:
        active = project.app.control.inspect(timeout=5).active() or {}
        return project.queue_length() == 0 and sum(map(len, active.values())) == running

    eventually(is_idle)


@pytest.mark.long
def test_no_header_switches_a_lock_off(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.WHILE_EXECUTING, OnConflict.SKIP]
    holder, _ = held(project, task, key)
    forged = [forge(project, task.name, key, **headers) for headers in SWITCHES]
    forged += [forge(project, task.name, key, embed=headers) for headers in SWITCHES]
    project.wait_for_note("taken", count=0)
    eventually(lambda: all(project.notes("taken", task_id=one.id) for one in forged))
    until_idle(project, running=1)
    assert [note.task_id for note in project.notes("begin", key=key)] == [holder.id]
    project.open(key)
    assert holder.get(timeout=PATIENCE) == holder.id


@pytest.mark.long
@pytest.mark.parametrize("lifetime", [Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_EXECUTED])
def test_a_running_lock_is_neither_freed_nor_taken(
    project: Project, key: str, lifetime: Lifetime
) -> None:
    task = project.tasks.tasks[lifetime, OnConflict.SKIP]
    holder, owner = held(project, task, key)
    header = {HEADER: [f"{task.name}:{key}", owner]}
    other = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.COMPLETE]
    forged = [
        forge(project, task.name, key, **header),
        forge(project, task.name, f"{key}-other", **header),
        forge(project, other.name, f"{key}-other", **header),
        forge(project, task.name, key, expires="2020-01-01T00:00:00+00:00", **header),
    ]
    forge(project, "unknown", key, **header)
    forge(project, task.name, key, eta="some day", **header)
    for result in forged:
        eventually(lambda result=result: result.state in states.READY_STATES)  # type: ignore[misc]
    until_idle(project, running=1)
    assert owner_of(project, f"{task.name}:{key}") == owner
    assert [note.task_id for note in project.notes("begin", key=key)] == [holder.id]


def test_a_reservation_is_not_freed_by_another_task_s_message(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXECUTED, OnConflict.SKIP]
    other = project.tasks.tasks[Lifetime.WHILE_EXECUTING, OnConflict.SKIP]
    task.apply_async((key,), countdown=600)
    name = f"{task.name}:{key}"
    owner = owner_of(project, name)
    forge(project, other.name, f"{key}-other", **{HEADER: [name, owner]}).get(timeout=PATIENCE)
    assert owner_of(project, name) == owner


@pytest.mark.parametrize("lifetime", [Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_EXECUTED])
def test_what_can_not_be_encoded_leaves_nothing_locked(
    project: Project, key: str, lifetime: Lifetime
) -> None:
    task = project.tasks.tasks[lifetime, OnConflict.SKIP]
    name = f"{task.name}:{key}"
    for value in (["x" + SURROGATE, NOBODY], [name, NOBODY + SURROGATE], [SURROGATE, SURROGATE]):
        result = forge(project, task.name, key, **{HEADER: value})
        assert result.get(timeout=PATIENCE) == result.id
        assert not project.is_held(key)
    for headers in ({"retries": SURROGATE}, {"headers": [1]}, {"replaced_task_nesting": SURROGATE}):
        result = forge(project, task.name, key, **headers)
        with suppress(Exception):
            result.get(timeout=PATIENCE)
        assert result.state == states.FAILURE
        assert not project.is_held(key)


def test_a_throttle_is_not_passed_with_a_forged_reservation(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXPIRED, OnConflict.SKIP]
    first = task.delay(key)
    assert first.get(timeout=PATIENCE) == first.id
    name = f"{task.name}:{key}"
    owner = owner_of(project, name)
    for claimed in (owner, NOBODY):
        forged = forge(project, task.name, key, **{HEADER: [name, claimed]})
        eventually(lambda forged=forged: forged.state == states.REVOKED)  # type: ignore[misc]
    assert len(project.notes("begin", key=key)) == 1
    assert task.delay(key).id == first.id


def test_a_throttle_reserved_for_longer_gets_its_own_period(project: Project, key: str) -> None:
    """As when its lifetime was changed at the worker first."""
    task = project.tasks.tasks[Lifetime.UNTIL_EXPIRED, OnConflict.SKIP]
    name = f"{task.name}:{key}"
    reservation = redlock_of(project.app).reserve(name, 3600, label="waiting")
    message = forge(project, task.name, key, id="waiting", **{HEADER: [name, reservation.owner]})
    assert message.get(timeout=PATIENCE) == "waiting"
    assert 0 < project.held_for(key) <= project.tasks.PERIOD
    message.forget()


def test_the_holder_s_nonce_is_in_no_result_and_no_log(project: Project, key: str) -> None:
    task = project.tasks.tasks[Lifetime.WHILE_EXECUTING, OnConflict.RAISE]
    _, owner = held(project, task, key)
    result = task.delay(key)
    eventually(lambda: result.state == states.FAILURE)
    backend: Any = project.app.backend
    stored = backend.get(backend.get_key_for_task(result.id))
    assert b"LockHeld" in stored
    assert owner[:32].encode() not in stored
    assert owner[:32] not in project.workers[0].log_text()


def test_a_message_can_not_choose_the_token(project: Project, key: str) -> None:
    task = project.tasks.fenced
    forged = forge(project, task.name, key, kwargs={"fencing_token": 10**18}, redlock_run=None)
    with pytest.raises(TypeError, match="fencing_token"):
        forged.get(timeout=PATIENCE)
    assert task.delay(key).get(timeout=PATIENCE) < 10**18
