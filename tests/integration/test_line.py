"""The place in line, without a worker: who has it, and who has to run because of it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery.app.task import Context
from celery.exceptions import Ignore

from celery_redlock import Lease, LockHeld
from celery_redlock.execution import Execution
from celery_redlock.line import Line
from celery_redlock.options import Lifetime, OnConflict
from celery_redlock.plan import new_plan
from celery_redlock.publish import Reservation, next_in_line, reserve
from celery_redlock.redlock import Redlock
from celery_redlock.run import COPY_HEADER, done_label
from celery_redlock.runtime import redlock_of
from tests.support.project import Project

from .conftest import NewProject


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("lifetimes")


@pytest.fixture
def redlock(project: Project) -> Redlock:
    return redlock_of(project.app)


def request_of(
    task_id: str, place: Reservation | None = None, *, redelivered: bool = False, copy: bool = False
) -> Context:
    """Return the request of a message; `copy`: one that was put off."""
    headers: dict[str, Any] = dict(place.header) if place else {}
    if copy:
        headers[COPY_HEADER] = True
    info = {"redelivered": redelivered}
    return Context(id=task_id, headers=headers, delivery_info=info, called_directly=False)


def line_of(redlock: Redlock, name: str, request: Context) -> Line:
    return Line(redlock, name, request, ttl=60.0)


def new_id() -> str:
    return str(uuid.uuid4())


# --- whose place ----------------------------------------------------------------------------------


def test_one_message_has_the_place(redlock: Redlock, key: str) -> None:
    first = new_id()
    line_of(redlock, key, request_of(first)).keep()
    with pytest.raises(LockHeld) as caught:
        line_of(redlock, key, request_of(new_id(), redelivered=True)).keep()
    assert first in str(caught.value.holder)


def test_the_message_that_has_the_place_keeps_it(
    project: Project, redlock: Redlock, key: str
) -> None:
    task_id, place = new_id(), None
    for _ in range(3):
        before, place = place, line_of(redlock, key, request_of(task_id, place)).keep()
        assert place != before
    assert project.held_for(key) > 50
    assert line_of(redlock, key, request_of(task_id, place)).leave()
    assert not project.is_held(key)


def test_a_copy_takes_the_place_over_from_what_may_have_died(redlock: Redlock, key: str) -> None:
    task_id = new_id()
    place = old = line_of(redlock, key, request_of(task_id)).keep()
    for request in (request_of(task_id, redelivered=True), request_of(task_id, copy=True)):
        place = line_of(redlock, key, request).keep()
    # What has lost it sees that another copy waits.
    with pytest.raises(LockHeld) as caught:
        line_of(redlock, key, request_of(task_id, old)).keep()
    assert caught.value.holder == place.owner


def test_who_never_had_the_place_leaves_it_alone(
    project: Project, redlock: Redlock, key: str
) -> None:
    line_of(redlock, key, request_of(new_id())).keep()
    assert not line_of(redlock, key, request_of(new_id())).leave()
    other = Reservation(next_in_line(key), "another")
    assert not line_of(redlock, key, request_of(new_id(), other)).leave()
    assert project.is_held(key)


# --- who has to run -------------------------------------------------------------------------------


def perform(project: Project, redlock: Redlock, key: str, request: Context) -> bool:
    """Execute a message, and tell whether its body ran."""
    name = project.tasks.tasks[Lifetime.UNTIL_AND_WHILE_EXECUTING, OnConflict.COALESCE].name
    task = project.app.tasks[name]
    options = new_plan(type(task), project.app).options
    ran: list[Lease | None] = []
    try:
        Execution(task, request, redlock, options, key, ran.append).perform()
    except Ignore:
        assert not ran
    return bool(ran)


@pytest.mark.parametrize("copy", [False, True])
def test_a_copy_ends_when_another_one_has_run(
    project: Project, redlock: Redlock, key: str, copy: bool
) -> None:
    task_id = new_id()
    old = reserve(redlock, next_in_line(key), 60.0, task_id)
    redlock.drop(old.key, old.owner)
    for request in (request_of(task_id, copy=copy), request_of(task_id, old, copy=copy)):
        redlock.mark_done(key, done_label(request))
        assert not perform(project, redlock, key, request)


@pytest.mark.parametrize("copy", [False, True])
def test_a_copy_that_has_the_place_runs_all_the_same(
    project: Project, redlock: Redlock, key: str, copy: bool
) -> None:
    task_id = new_id()
    request = request_of(task_id, reserve(redlock, next_in_line(key), 60.0, task_id), copy=copy)
    # Another copy has run, without the place; then somebody was turned away because of this one.
    redlock.mark_done(key, done_label(request))
    assert perform(project, redlock, key, request)
    assert not project.is_held(key)
