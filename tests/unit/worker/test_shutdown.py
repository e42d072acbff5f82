"""A worker is shut down while a run waits for its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import SingletonTask
from celery_redlock.pools import pool_process
from celery_redlock.redlock import Lease
from celery_redlock.worker import signal_handlers
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

HOLDER = f"{'0' * 32}:holder@host"


class WaitsOnError(Exception):
    """Nobody ended a wait."""


@pytest.fixture(autouse=True)
def no_shutdown() -> Iterator[None]:
    yield
    pool_process.note_shutdown(is_under_way=False)


@pytest.fixture
def patient(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The node's lock with waits that end when somebody ends them; what happens during the next."""
    during: list[Callable[[], None]] = []
    acquire = node.acquire_for_task

    def acquire_or_wait(key: str, ttl: float = 30.0, **how: Any) -> Lease:
        if how.pop("wait", None) is None:
            return acquire(key, ttl, **how)
        how["on_attempt"]("owner")
        during.pop()()
        how["on_attempt"]("owner")
        raise WaitsOnError

    monkeypatch.setattr(node, "acquire_for_task", acquire_or_wait)
    return during


@pytest.fixture
def waiting(app: Celery, node: OneNode) -> Any:
    @app.task(base=SingletonTask, name="t", lock_key=[], lock_on_conflict="wait")
    def body() -> None:
        raise AssertionError("it has no lock")

    node.held["t"] = HOLDER, 1e9
    return body


def test_a_shutdown_ends_a_wait_and_the_message_goes_back(
    waiting: Any, patient: list[Callable[[], None]]
) -> None:
    patient.append(signal_handlers.note_shutdown)
    assert deliver(waiting)[1].state == "RETRY"


def test_no_wait_ends_without_a_shutdown(waiting: Any, patient: list[Callable[[], None]]) -> None:
    patient.append(lambda: None)
    assert isinstance(deliver(waiting)[1].retval, WaitsOnError)
