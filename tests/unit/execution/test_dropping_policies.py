"""What ends without running, by its policy: its state, its result, and what is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock import DuplicateTask, LockHeld
from celery_redlock.messages.reservation import Reservation
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode


@pytest.mark.parametrize(
    ("policy", "state", "result"),
    [
        ("skip", "REVOKED", DuplicateTask),
        ("raise", "FAILURE", LockHeld),
        ("complete", "SUCCESS", str),
    ],
)
def test_a_duplicate_ends_as_its_policy_says(
    new_task: NewTask, node: OneNode, conflicts: Any, policy: str, state: str, result: type[Any]
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 20
    node.held["t%next"] = WAITING, 1e9
    more = {"lock_conflict_result": "as before"} if policy == "complete" else {}
    task = new_task(lock_on_conflict=policy, lock_lifetime="until_and_while_executing", **more)
    deliver(task, **Reservation("t%next", WAITING).header)
    stored = task.AsyncResult("task-1")
    assert stored.state == state
    assert isinstance(stored.result, result)
    if policy == "complete":
        assert stored.result == "as before"
    else:
        assert stored.result.key == "t"
        assert stored.result.holder.split("@")[0] == "holder"
        assert stored.result.remaining == 20
    assert task.runs == []
    assert [(one["outcome"], one["error"].owner) for one in conflicts] == [(policy, HOLDER)]
    assert {key: owner for key, (owner, _) in node.held.items()} == {"t": HOLDER}
