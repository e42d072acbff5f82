"""An execution that a time limit strikes at any line leaves nothing locked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

import celery_redlock
from celery_redlock import SingletonTask
from celery_redlock.execution.running import current
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.redlock.lease import new_owner
from celery_redlock.task.publication import reserved_key
from celery_redlock.worker.signal_handlers import _on_postrun
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

PACKAGE = Path(celery_redlock.__file__).parent
FILES = {
    str(path)
    for room in ("execution", "messages", "task")
    for path in (PACKAGE / room).rglob("*.py")
    if path.name != "requeue.py"  # the broker's part, which a test without one replaces
}
LIFETIMES = ["while_executing", "until_executing", "until_executed", "until_and_while_executing"]


def is_after_all(frame: FrameType | None) -> bool:
    """Tell whether a frame is under the signal that makes up for what was struck."""
    while frame is not None and frame.f_code is not _on_postrun.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def struck_at(number: int) -> Iterator[Callable[[], bool]]:
    """Raise at the given line of those that are run inside; yield what tells whether it came."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES or is_after_all(frame):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise SoftTimeLimitExceeded
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: left <= 0
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("policy", ["skip", "coalesce"])
def test_a_strike_at_any_line_leaves_nothing_locked(
    app: Celery, node: OneNode, lifetime: str, policy: str
) -> None:
    if policy == "coalesce" and lifetime in ("until_executing", "until_executed"):
        policy = "complete"

    @app.task(
        base=SingletonTask, name="t", lock_key=[], lock_lifetime=lifetime, lock_on_conflict=policy
    )
    def body() -> None: ...

    key = reserved_key(body._lock_config().options.lifetime, "t")
    number, has_come = 0, True
    while has_come:
        number += 1
        headers = {}
        if key:
            owner = new_owner("task-1", is_reservation=True)
            node.held[key] = owner, 1e9
            headers = {HEADER: [key, owner]}
        with struck_at(number) as was_struck:
            deliver(body, **headers)
            has_come = was_struck()
        assert node.held == {}, f"struck at line {number}"
        assert current.get() is None, f"struck at line {number}"
    assert number > 50
