"""The place in line, without a worker: who has it, and who has to run because of it."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from kombu.exceptions import OperationalError

from celery_redlock import Lease, LockHeld
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.declared_options import lock_options
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.config.task_config import task_lock_config
from celery_redlock.execution.execution import execute
from celery_redlock.execution.message import Message
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
)
from celery_redlock.messages.reservation import Reservation, pending_slot_key, reserve
from celery_redlock.redlock.task_lock import TaskLock
from tests.integration.conftest import NewProject
from tests.support.fakes.forged import context_of, delivery_of
from tests.support.processes.project import Project


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("lifetimes")


@pytest.fixture
def redlock(project: Project) -> TaskLock:
    return redlock_of(project.app)


def request_of(
    task_id: str, place: Reservation | None = None, *, redelivered: bool = False, copy: bool = False
) -> Context:
    """Return the request of a message; `copy`: one that was put off."""
    headers: dict[str, Any] = {PUBLICATION_HEADER: nonce_of(task_id)}
    headers |= place.header if place else {}
    if copy:
        headers[COPY_HEADER] = True
    info = {"redelivered": redelivered}
    return context_of(id=task_id, headers=headers, delivery_info=info, called_directly=False)


def nonce_of(task_id: str) -> str:
    return uuid.UUID(task_id).hex[:16]


@pytest.fixture
def key(project: Project, key: str) -> str:
    """The key of a lock of the task."""
    return f"{coalescing(project).name}:{key}"


def slot_of(redlock: TaskLock, key: str, request: Context) -> Message:
    task: Any = SimpleNamespace(name=key.partition(":")[0], acks_late=False)
    options = lock_options(task.name, {}, {}, max_ttl=60.0)
    return Message(Delivery.of(task, request), redlock, options, key, lambda _: None)


def new_id() -> str:
    return str(uuid.uuid4())


# --- whose place ----------------------------------------------------------------------------------


def test_one_message_has_the_place(redlock: TaskLock, key: str) -> None:
    first = new_id()
    slot_of(redlock, key, request_of(first)).reserve_slot(0.0)
    with pytest.raises(LockHeld) as caught:
        slot_of(redlock, key, request_of(new_id(), redelivered=True)).reserve_slot(0.0)
    assert first in str(caught.value.holder)


def test_the_message_that_has_the_place_keeps_it(
    project: Project, redlock: TaskLock, key: str
) -> None:
    task_id, place = new_id(), None
    for _ in range(3):
        before, place = place, slot_of(redlock, key, request_of(task_id, place)).reserve_slot(0.0)
        assert place != before
    assert project.held_for(key) > 50
    assert slot_of(redlock, key, request_of(task_id, place)).release_slot()
    assert not project.is_held(key)


def test_a_copy_takes_the_place_over_from_what_may_have_died(redlock: TaskLock, key: str) -> None:
    task_id = new_id()
    place = old = slot_of(redlock, key, request_of(task_id)).reserve_slot(0.0)
    for request in (request_of(task_id, redelivered=True), request_of(task_id, copy=True)):
        place = slot_of(redlock, key, request).reserve_slot(0.0)
    # What has lost it sees that another copy waits.
    with pytest.raises(LockHeld) as caught:
        slot_of(redlock, key, request_of(task_id, old)).reserve_slot(0.0)
    assert caught.value.owner == place.owner


def test_who_never_had_the_place_leaves_it_alone(
    project: Project, redlock: TaskLock, key: str
) -> None:
    slot_of(redlock, key, request_of(new_id())).reserve_slot(0.0)
    assert not slot_of(redlock, key, request_of(new_id())).release_slot()
    other = Reservation(pending_slot_key(key), "another")
    assert not slot_of(redlock, key, request_of(new_id(), other)).release_slot()
    assert project.is_held(key)


# --- who has to run -------------------------------------------------------------------------------


def coalescing(project: Project) -> Any:
    name = project.tasks.tasks[Lifetime.UNTIL_AND_WHILE_EXECUTING, OnConflict.COALESCE].name
    return project.app.tasks[name]


def perform(project: Project, redlock: TaskLock, key: str, request: Context) -> bool:
    """Execute a message, and tell whether its body ran."""
    task = coalescing(project)
    options = task_lock_config(type(task), project.app).options
    ran: list[Lease | None] = []
    try:
        execute(Message(Delivery.of(task, request), redlock, options, key, ran.append))
    except Ignore:
        assert not ran
    return bool(ran)


@pytest.mark.parametrize("copy", [False, True])
def test_a_copy_ends_when_another_one_has_run(
    project: Project, redlock: TaskLock, key: str, copy: bool
) -> None:
    task_id = new_id()
    old = reserve(redlock, pending_slot_key(key), 60.0, task_id, nonce_of(task_id))
    redlock.release_owner(old.key, old.owner)
    for request in (request_of(task_id, copy=copy), request_of(task_id, old, copy=copy)):
        redlock.mark_done(key, delivery_of(request).done_label)
        assert not perform(project, redlock, key, request)


@pytest.mark.parametrize("copy", [False, True])
def test_a_copy_that_has_the_place_runs_all_the_same(
    project: Project, redlock: TaskLock, key: str, copy: bool
) -> None:
    task_id = new_id()
    request = request_of(
        task_id,
        reserve(redlock, pending_slot_key(key), 60.0, task_id, nonce_of(task_id)),
        copy=copy,
    )
    # Another copy has run, without the place; then somebody was turned away because of this one.
    redlock.mark_done(key, delivery_of(request).done_label)
    assert perform(project, redlock, key, request)
    assert not project.is_held(key)


# --- who can not be published again ---------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("has_place", [False, True])
@pytest.mark.parametrize("error", [OperationalError("refused"), SystemExit(1)], ids=repr)
def test_a_place_is_given_back_if_its_message_is_not_published(
    project: Project,
    redlock: TaskLock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    late: bool,
    has_place: bool,
    error: BaseException,
) -> None:
    task = coalescing(project)
    monkeypatch.setattr(task, "acks_late", late)
    task_id = new_id()
    place = reserve(redlock, pending_slot_key(key), 60.0, task_id, nonce_of(task_id))
    if not has_place:
        redlock.release_owner(place.key, place.owner)
    holder = redlock.acquire(key)
    held = []

    def refuse(*_: Any, **__: Any) -> None:
        held.append(project.is_held(pending_slot_key(key)))
        raise error

    monkeypatch.setattr(task, "apply_async", refuse)
    request = request_of(task_id, place if has_place else None)
    request.update(args=(key,), kwargs={})
    expected = Reject if late and isinstance(error, Exception) else type(error)
    with pytest.raises(expected):
        perform(project, redlock, key, request)
    redlock.release(holder)
    assert held == [True]
    assert not project.is_held(key)


@pytest.mark.parametrize(("late", "at_most"), [(False, 70), (True, 3600)])
def test_a_place_outlives_an_early_acked_message_for_a_minute(
    project: Project,
    redlock: TaskLock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    late: bool,
    at_most: float,
) -> None:
    # Should its process die before the message is published again, nobody comes for the place.
    task = coalescing(project)
    monkeypatch.setattr(task, "acks_late", late)
    monkeypatch.setattr(task, "apply_async", lambda *_, **__: None)
    task_id = new_id()
    request = request_of(
        task_id, reserve(redlock, pending_slot_key(key), 3600.0, task_id, "0" * 16)
    )
    request.update(args=(key,), kwargs={})
    holder = redlock.acquire(key)
    with pytest.raises(Retry):
        perform(project, redlock, key, request)
    assert at_most / 2 < project.held_for(pending_slot_key(key)) <= at_most
    redlock.release(holder)


@pytest.mark.parametrize(("before", "is_held"), [(0, True), (3, False)])
def test_a_reservation_goes_along_with_a_message_that_is_counted(
    project: Project,
    redlock: TaskLock,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
    before: int,
    is_held: bool,
) -> None:
    task = coalescing(project)
    monkeypatch.setattr(task, "acks_late", True)
    monkeypatch.setattr(task, "apply_async", lambda *_, **__: None)
    task_id = new_id()
    place = reserve(redlock, pending_slot_key(key), 60.0, task_id, nonce_of(task_id))
    request = request_of(task_id, place, redelivered=True)
    request.update(args=(key,), kwargs={}, **{DELIVERIES_HEADER: before})
    options = task_lock_config(type(task), project.app).options
    message = Message(Delivery.of(task, request), redlock, options, key, lambda _: None)
    with pytest.raises((Ignore, Reject)):
        execute(message, max_deliveries=3)
    assert project.is_held(key) is is_held
