"""Removal of a lock or a done mark by an operator: what is shown before, and what is removed."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from celery_redlock.config.declared_options import lock_options
from celery_redlock.operate import removal as removals
from celery_redlock.operate.locks import Kind, Lock
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.operator_log import read_log
from celery_redlock.operate.removal import (
    consequence,
    operator,
    removal_of,
    remove,
    remove_held_by,
)
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.task.singleton import SingletonTask
from tests.support.fakes.forged import PERIOD
from tests.support.fakes.operated import Operated

RUNNING = (
    "its task may be running: the next renewal, within a third of lock_ttl, fails, and {}. Until "
    "then two tasks may run at once; only a resource that checks the token refuses the older one"
)


@pytest.mark.parametrize(
    ("kind", "declared", "says"),
    [
        (Kind.DONE, None,
         "a copy of that message, if one is delivered again, runs the task once more"),
        (Kind.CLAIM, None,
         "a replica of beat that looks back so far publishes the tick again"),
        (Kind.PUBLISHED, None,
         "a replica of beat that looks back so far publishes the tick again"),
        (Kind.MISSED, None, "the tick is not shown as missed any more"),
        (Kind.PENDING, None,
         ("the waiting message still comes back and runs; until then, further messages are not "
          "skipped for it any more")),
        (Kind.RESERVED, None,
         "the message stays in the queue, and runs; but a second call can be published beside it"),
        (Kind.HELD, {"lock_on_lost": "continue"},
         RUNNING.format("its lease is lost, and it goes on")),
        (Kind.HELD, {}, RUNNING.format("LeaseLost is raised in it")),
        (Kind.HELD, {"lock_lifetime": "until_expired"},
         RUNNING.format("LeaseLost is raised in it")),
        (Kind.HELD, None, RUNNING.format("LeaseLost is raised in it")),
    ],
)  # fmt: skip
def test_the_consequence_says_what_the_next_call_notices(
    kind: Kind, declared: dict[str, Any] | None, says: str
) -> None:
    options = None if declared is None else lock_options("t", declared, {}, max_ttl=60.0)
    assert consequence(Lock("k", kind, "owner", 3, 3, 9.0), options) == says


@pytest.mark.parametrize("lifetime", ["until_expired", "until_executed"])
def test_of_a_throttle_s_period_the_consequence_says_that_nothing_runs(lifetime: str) -> None:
    """Whether it is one, the owner says: the task may have another lifetime by now."""
    options = lock_options("t", {"lock_lifetime": lifetime}, {}, max_ttl=60.0)
    assert consequence(Lock("k", Kind.HELD, PERIOD, 3, 3, 9.0), options) == (
        "nothing runs under it: it is the period of a throttle, and the next call may run"
    )


@pytest.fixture
def redlock(three: Operated) -> TaskLock:
    return three.redlock()


def test_the_options_are_those_of_the_task_in_the_key(
    app: Celery, three: Operated, redlock: TaskLock
) -> None:
    @app.task(base=SingletonTask, name="t", lock_on_lost="continue")
    def _task() -> None: ...

    redlock.acquire("t:1")
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(three.target(app=app), nodes, "t:1", None)
    assert removal
    assert removal[1] == RUNNING.format("its lease is lost, and it goes on")


def test_the_done_mark_of_the_label_is_removed(three: Operated, redlock: TaskLock) -> None:
    for label in ("task-1/0/a", "task-2/0/a"):
        redlock.mark_done("k", label)
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(three.target(), nodes, "k", "task-2/0/a")
        assert removal
        assert removal[0].owner == "task-2/0/a"
        assert removal_of(three.target(), nodes, "k", "task-3/0/a") is None


@pytest.mark.parametrize("label", [None, "task-1/0/a"])
def test_what_no_quorum_denies_is_not_called_free(three: Operated, label: str | None) -> None:
    three[0].is_up = three[1].is_up = False
    with NodeSet(three.urls, 1.0) as nodes, pytest.raises(QuorumUnavailable) as caught:
        removal_of(three.target(), nodes, "k", label)
    assert str(caught.value).startswith("cannot release 'k': 1 of 3 nodes answered, 2 are needed")


def test_a_removal_closes_its_connections(
    three: Operated, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("k")
    closed: list[TaskLock] = []

    def close(redlock: TaskLock) -> None:
        closed.append(redlock)

    monkeypatch.setattr(TaskLock, "close", close)
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(three.target(), nodes, "k", None)
        assert removal
        assert remove(three.target(), nodes, removal[0], "alice@ops")
        assert not remove(three.target(), nodes, removal[0], "alice@ops"), "it is released already"
        three[0].is_up = three[1].is_up = False
        with pytest.raises(QuorumUnavailable):
            remove(three.target(), nodes, removal[0], "alice@ops")
    assert len(closed) == 3


@pytest.mark.parametrize("label", [None, "task-1/0/a"])
def test_only_the_expected_holder_is_released(
    three: Operated, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch, label: str | None
) -> None:
    redlock.acquire("k")
    redlock.mark_done("k", "task-1/0/a")
    target = three.target()

    def release(expected: str | None) -> bool:
        return remove_held_by(target, nodes, "k", label, expected, "alice@ops", "it hangs")

    with target.nodes() as nodes:
        removal = removal_of(target, nodes, "k", label)
        assert removal
        assert [release(expected) for expected in (None, "", "0123456789ab")] == [False] * 3
        with monkeypatch.context() as patch:
            # Another holder has it, between the look and the release.
            patch.setattr(removals, "remove", lambda *_: False)
            assert not release(removal[0].id)
        assert release(removal[0].id)
        assert not release(removal[0].id), "it is released already"
        [action], _ = read_log(target, nodes)
    assert (action.author, action.reason) == ("alice@ops", "it hangs")


@pytest.mark.parametrize(("refusing", "is_deleted"), [([], True), ([1], True), ([1, 2], False)])
def test_a_done_mark_is_deleted_if_a_majority_does_so(
    three: Operated, redlock: TaskLock, refusing: list[int], is_deleted: bool
) -> None:
    redlock.mark_done("k", "task-1/0/a")
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(three.target(), nodes, "k", "task-1/0/a")
        assert removal
        for index in refusing:
            three[index].refused["DEL"] = "READONLY"
        if is_deleted:
            assert remove(three.target(), nodes, removal[0], "alice@ops")
            return
        with pytest.raises(QuorumUnavailable) as caught:
            remove(three.target(), nodes, removal[0], "alice@ops")
    errors = {"127.0.0.1:7001": "READONLY", "127.0.0.1:7002": "READONLY"}
    assert caught.value.errors == errors
    assert str(caught.value).startswith("cannot release 'k': 1 of 3 nodes answered, 2 are needed")


def test_a_node_that_is_down_deletes_no_done_mark(three: Operated, redlock: TaskLock) -> None:
    redlock.mark_done("k", "task-1/0/a")
    with NodeSet(three.urls, 1.0) as nodes:
        removal = removal_of(three.target(), nodes, "k", "task-1/0/a")
        assert removal
        three[0].is_up = three[1].is_up = False
        with pytest.raises(QuorumUnavailable) as caught:
            remove(three.target(), nodes, removal[0], "alice@ops")
    assert set(caught.value.errors.values()) == {"Connection closed"}


def test_the_operator_is_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "ops")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    assert operator() == "alice@ops"
    # As in a container that runs as a number.
    monkeypatch.setattr(getpass, "getuser", Mock(side_effect=KeyError))
    assert operator() == f"uid {os.getuid()}@ops"
