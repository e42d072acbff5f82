"""A greenlet that is killed: its task has ended, or its message is executed again."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TimeLimitExceeded
from celery.worker import state

from celery_redlock import SingletonTask
from celery_redlock.execution import kills
from celery_redlock.worker import signal_handlers
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

MARK = ("t", "task-1/0")


class GreenletExit(BaseException):
    """As that of greenlet, which need not be installed."""


class Timeout(BaseException):
    """As that of gevent, which need not be installed."""


@pytest.fixture(autouse=True)
def _greenlets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(GreenletExit=GreenletExit))
    monkeypatch.setitem(sys.modules, "gevent", SimpleNamespace(Timeout=Timeout))
    # Those of other tests are of the same task id.
    monkeypatch.setattr(kills, "_killed", deque())
    monkeypatch.setattr(kills, "_stored", deque())


@pytest.fixture
def extended(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The done marks that are no longer provisional."""
    marks: list[tuple[str, str]] = []
    monkeypatch.setattr(node, "mark_done", lambda key, label: marks.append((key, label)))
    return marks


def new_task(app: Celery, error: type[BaseException], **options: Any) -> Any:
    """Return a task whose greenlet is killed in its body."""

    @app.task(base=SingletonTask, name="t", lock_key=[], acks_late=True, **options)
    def body() -> None:
        raise error

    return body


def test_a_revoked_task_leaves_its_mark_when_that_is_stored(
    app: Celery, node: OneNode, extended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "revoked", {"task-1"})
    with pytest.raises(GreenletExit):
        deliver(new_task(app, GreenletExit))
    assert (node.done, extended) == ({MARK}, [])
    for task_id, marks in (("another", []), ("task-1", [MARK]), ("task-1", [MARK])):
        signal_handlers._on_terminated(request=SimpleNamespace(id=task_id), terminated=True)
        assert extended == marks


def test_a_task_over_its_time_limit_leaves_its_mark_when_that_is_stored(
    app: Celery, node: OneNode, extended: list[Any]
) -> None:
    body = new_task(app, Timeout)
    try:
        deliver(body)
    except Timeout:  # in which gevent's pool reports it
        assert (node.done, extended) == ({MARK}, [])
        signal_handlers._on_failure(body, task_id="task-1", exception=TimeLimitExceeded(1))
    assert extended == [MARK]


@pytest.mark.parametrize("error", [GreenletExit, Timeout])
def test_a_killed_run_whose_message_comes_again_leaves_no_mark(
    app: Celery, node: OneNode, extended: list[Any], error: type[BaseException]
) -> None:
    body = new_task(app, error, acks_on_failure_or_timeout=False)
    with suppress(Timeout):
        deliver(body)
    assert node.done == set()
    signal_handlers._on_failure(body, task_id="task-1", exception=TimeLimitExceeded(1))
    assert (node.done, extended) == (set(), [])


def test_a_greenlet_that_ends_after_its_outcome_leaves_its_mark(
    app: Celery, node: OneNode, extended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Celery does not wait for a greenlet that it kills.
    monkeypatch.setattr(state, "revoked", {"task-1"})
    signal_handlers._on_terminated(request=SimpleNamespace(id="task-1"), terminated=True)
    with pytest.raises(GreenletExit):
        deliver(new_task(app, GreenletExit))
    assert (node.done, extended) == ({MARK}, [MARK])


@pytest.mark.parametrize("name", ["acks_on_timeout", "acks_on_failure_or_timeout"])
@pytest.mark.parametrize("acks_late", [False, True])
@pytest.mark.parametrize("acks", [False, True])
def test_a_message_over_its_time_limit_comes_again_unless_it_is_acknowledged(
    name: str, acks_late: bool, acks: bool
) -> None:
    """Up to Celery 5.6 by one attribute, which since decides about failures."""
    given = {"acks_on_failure_or_timeout": not acks, name: acks}
    task: Any = SimpleNamespace(acks_late=acks_late, **given)
    assert kills.will_be_redelivered_on_timeout(task) is (acks_late and not acks)
