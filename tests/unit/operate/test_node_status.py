"""Status of a node, by what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.operate.node_status import NodeStatus, votes
from celery_redlock.operate.target import Target
from celery_redlock.redlock.inspection import State

MASTER = {"role": "master", "run_id": "1", "redis_version": "7.0.15"}


def status(state: State = State.VOTES, **changes: Any) -> NodeStatus:
    return NodeStatus("a", state, **{"info": MASTER} | changes)


def test_a_node_that_does_not_vote_is_not_counted() -> None:
    assert votes([status(state) for state in (State.VOTES, *State)]) == 2


def test_the_version_names_the_server_that_it_is() -> None:
    assert status().version == "Redis 7.0.15"
    assert status(info=MASTER | {"valkey_version": "9.1.0"}).version == "Valkey 9.1.0"
    assert status(info={}).version is None


def test_the_guard_is_off_for_one_node_unless_it_is_set() -> None:
    assert Target(["a"]).guard == 0.0
    assert Target(["a"], restart_guard=True).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"]).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"], restart_guard=False).guard == 0.0
