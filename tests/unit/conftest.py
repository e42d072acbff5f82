"""An app whose lock is in this process, for tests of executions without a server."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.backends import cache as results
from celery.signals import after_task_publish

from celery_redlock.config import app_lock
from celery_redlock.execution import no_quorum
from celery_redlock.messages import reservation
from celery_redlock.signals import lock_conflict
from celery_redlock.throttled_log import ThrottledLog
from tests.support.fakes.fleet import Fleet
from tests.support.fakes.forged import NewTask, task_maker
from tests.support.fakes.one_node import OneNode
from tests.support.processes.project import celery_to_itself


@pytest.fixture(autouse=True)
def _signals_stay_as_they_were() -> Iterator[None]:
    """Fail a test that leaves the process with the handler of a signal that it did not have."""
    before = signal.getsignal(signal.SIGURG)
    yield
    assert signal.getsignal(signal.SIGURG) is before, "the test has made this a pool process"


@pytest.fixture
def node() -> OneNode:
    """The lock of `app`."""
    return OneNode()


@pytest.fixture
def app(node: OneNode) -> Iterator[Celery]:
    """An app with a broker and a result backend in memory."""
    with (
        celery_to_itself(),
        Celery(
            "forged", broker="memory://", backend="cache+memory://", set_as_current=False
        ) as app,
    ):
        app.conf.update(redlock_nodes=["redis://127.0.0.1:1"])
        app_lock._redlocks[app] = node
        results._DUMMY_CLIENT_CACHE.clear()  # type: ignore[attr-defined]
        yield app


@pytest.fixture
def new_task(app: Celery) -> NewTask:
    """Make the task `t`, whose calls all have the key `t`: `new_task(**options)`."""
    return task_maker(app)


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    """Headers of the messages that were published."""
    sent: list[dict[str, Any]] = []

    def note(headers: dict[str, Any], **_: Any) -> None:
        sent.append(headers)

    after_task_publish.connect(note)
    yield sent
    after_task_publish.disconnect(note)


@pytest.fixture
def fleet(app: Celery, node: OneNode, published: list[dict[str, Any]]) -> Fleet:
    """The task `t` in processes that differ."""
    return Fleet(app, node, published)


@pytest.fixture
def conflicts() -> Iterator[list[dict[str, Any]]]:
    """What receivers of `lock_conflict` were told."""
    told: list[dict[str, Any]] = []

    def note(**conflict: Any) -> None:
        told.append(conflict)

    lock_conflict.connect(note)
    yield told
    lock_conflict.disconnect(note)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the lines that were logged since: `log()`, each with its level."""
    # A throttled line is logged as after a long silence.
    monkeypatch.setattr(no_quorum, "_no_quorum", ThrottledLog())
    monkeypatch.setattr(reservation, "_unreleased", ThrottledLog())
    caplog.set_level(logging.DEBUG, "celery_redlock")

    def lines() -> list[tuple[str, str]]:
        return [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if record.name.startswith("celery_redlock")
        ]

    return lines
