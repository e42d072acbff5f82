"""A worker's steps check the nodes, and make a keeper only for a pool that forks."""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.signals import worker_shutdown
from kombu.utils.imports import symbol_by_name

from celery_redlock.execution.kills import is_received_and_revoked
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.pools import pool_process
from celery_redlock.pools.prefork_keeper import is_supported
from celery_redlock.redlock import ConfigurationError
from celery_redlock.redlock.events import log_event_of_leases
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.lease import new_owner
from celery_redlock.worker import bootsteps, signal_handlers, steps
from celery_redlock.worker.signal_handlers import keepers
from tests.support.requirements import linux_only


class Worker(SimpleNamespace):
    """A worker, which can be the sender of signals."""

    def __hash__(self) -> int:  # type: ignore[override]  # a namespace has none
        return id(self)


class Nodes:
    """A lock of three nodes, some of which can't be used."""

    quorum = 2

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.why: dict[str, str] = {}
        self.waits: dict[str, float] = {}
        self.error: ConfigurationError | None = None
        self.is_closed = False

    def judge(self) -> list[Judgement]:
        if self.error:
            raise self.error
        return [
            Judgement(name, self._state(name), self.why.get(name), self.waits.get(name, 0.0))
            for name in ("a", "b", "c")
        ]

    def _state(self, name: str) -> State:
        if name not in self.why:
            return State.VOTES
        is_guarded = name in self.waits and self.why[name] != "full"
        return State.GUARDED if is_guarded else State.DOWN

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def parent() -> Iterator[Any]:
    """A worker with a prefork pool."""
    app = Celery("bank", set_as_current=False)
    app.conf.update(redlock_nodes=["redis://127.0.0.1:1"])
    yield Worker(app=app, pool_cls=TaskPool, steps=[], wait_for_soft_shutdown=lambda: None)
    keepers.pop(os.getpid(), None)
    pool_process.note_shutdown(is_under_way=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()

    def new_redlock(settings: Any) -> Nodes:
        assert list(settings.nodes) == ["redis://127.0.0.1:1"]
        return nodes

    monkeypatch.setattr(bootsteps, "new_redlock", new_redlock)
    return nodes


def check(parent: Any) -> None:
    bootsteps.CheckNodes(parent).create(parent)


def test_too_few_nodes_at_the_start_are_an_error_line(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.why = {"a": "refused", "c": "full"}
    check(parent)
    assert caplog.messages == [
        (
            "no quorum at start, no lock can be acquired votes=1 of=3 needed=2 "
            "errors=a: refused; c: full"
        )
    ]
    assert nodes.is_closed
    assert not parent.redlock_has_quorum


def test_nodes_that_all_vote_at_the_start_are_an_info_line(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "celery_redlock")
    check(parent)
    [record] = caplog.records
    assert record.getMessage() == "nodes checked votes=3 of=3 needed=2"
    assert record.levelno == logging.INFO
    assert parent.redlock_has_quorum


def test_a_node_that_does_not_vote_at_the_start_is_named(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.why = {"a": "refused"}
    check(parent)
    assert caplog.messages == ["nodes checked votes=2 of=3 needed=2 others=a: refused"]
    assert parent.redlock_has_quorum


def test_nodes_in_their_guard_at_the_start_say_when_they_vote(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.waits = {"a": 41.0, "b": 30.0, "c": 55.0}
    nodes.why = {name: f"votes in {left}" for name, left in nodes.waits.items()}
    check(parent)
    assert caplog.messages == [
        (
            "no quorum votes yet, no lock can be acquired, new nodes can be admitted wait_s=41 "
            "votes=0 of=3 needed=2 others=a: votes in 41.0; b: votes in 30.0; c: votes in 55.0"
        )
    ]
    assert not parent.redlock_has_quorum


def test_one_node_in_its_guard_may_make_the_quorum(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.waits, nodes.why = {"a": 41.0}, {"a": "votes in 41.0", "b": "refused"}
    check(parent)
    assert caplog.messages[0].startswith("no quorum votes yet")
    assert " wait_s=41 votes=1 of=3 needed=2 " in caplog.messages[0]


def test_a_guarded_node_that_is_full_will_not_vote_either(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.waits = {"a": 41.0, "b": 30.0}
    nodes.why = {"a": "full", "b": "votes in 30.0", "c": "full"}
    check(parent)
    assert caplog.messages[0].startswith("no quorum at start, no lock can be acquired votes=0")


def test_nodes_that_can_never_be_a_quorum_stop_the_worker(parent: Any, nodes: Nodes) -> None:
    nodes.error = ConfigurationError("node a is a slave")
    with pytest.raises(ConfigurationError):
        check(parent)
    assert nodes.is_closed


def test_a_node_that_is_no_master_stops_the_worker(parent: Any, nodes: Nodes) -> None:
    nodes.nodes = [SimpleNamespace(misconfigured=ConfigurationError("node a is a slave"))]
    with pytest.raises(ConfigurationError):
        check(parent)
    assert nodes.is_closed


def test_a_worker_that_locks_nothing_asks_no_node(
    parent: Any, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent.app.conf.update(redlock_enabled=False)
    nodes.error = ConfigurationError("node a is a slave")
    told: list[Any] = []
    monkeypatch.setattr(bootsteps, "log_weak_locking", told.append)
    check(parent)
    assert told == [parent.app]
    for kind in (bootsteps.PoolKeeper, bootsteps.WatchNodes):
        step = kind(parent)
        step.create(parent)
        step.start(parent)
        step.stop(parent)
    assert os.getpid() not in keepers


def test_a_worker_of_an_app_that_only_has_others_tasks_starts(
    parent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    parent.app.conf.update(redlock_nodes=None, broker_url="memory://")
    check(parent)
    bootsteps.PoolKeeper(parent).create(parent)
    bootsteps.WatchNodes(parent).start(parent)
    bootsteps.ComparePlacements(parent).start(parent)
    assert caplog.messages == [
        "no node to lock on, the singleton tasks of other apps fail here app=bank"
    ]
    assert os.getpid() not in keepers


@pytest.mark.parametrize("has_quorum", [True, False])
def test_a_worker_watches_its_nodes_until_it_stops(
    parent: Any, monkeypatch: pytest.MonkeyPatch, *, has_quorum: bool
) -> None:
    calls: list[Any] = []

    def new_watch(*args: Any, is_known: bool) -> Any:
        calls.append((*args, is_known))
        return SimpleNamespace(
            start=lambda: calls.append("start"), stop=lambda: calls.append("stop")
        )

    monkeypatch.setattr(bootsteps, "redlock_of", {parent.app: "lock"}.__getitem__)
    monkeypatch.setattr(bootsteps, "NodeWatch", new_watch)
    parent.redlock_has_quorum = has_quorum
    step = bootsteps.WatchNodes(parent)
    step.start(parent)
    assert calls == [(parent.app, "lock", not has_quorum), "start"]
    step.stop(parent)
    assert calls[2:] == ["stop"]


@linux_only("has pidfds", is_there=is_supported())
def test_the_keeper_runs_until_the_pool_has_ended(
    parent: Any, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def new_keeper(new_redlock: Any, is_revoked: Any) -> Any:
        calls.append((new_redlock(), is_revoked))
        return SimpleNamespace(
            start=lambda: calls.append("start"),
            note_shutdown=lambda: calls.append("shutdown"),
            stop=lambda: calls.append("stop"),
        )

    monkeypatch.setattr(bootsteps, "PreforkKeeper", new_keeper)
    step = bootsteps.PoolKeeper(parent)
    step.create(parent)
    assert calls == [(nodes, is_received_and_revoked)]
    assert vars(nodes)["log"] is log_event_of_leases
    step.start(parent)
    step.stop(parent)
    worker_shutdown.send(sender=object())
    assert calls[1:] == ["start", "shutdown"]
    worker_shutdown.send(sender=parent)
    assert calls[3:] == ["stop"]


def test_the_steps_of_a_worker_are_known_by_name() -> None:
    app = Celery("bank", set_as_current=False)
    for _ in range(2):
        steps.install(app)
    names = {
        kind: {symbol_by_name(name).__name__ for name in app.steps[kind]} for kind in app.steps
    }
    assert names == {
        "worker": {"CheckNodes", "PoolKeeper", "WatchNodes"},
        "consumer": {"UnreadableMessages", "ComparePlacements"},
    }


@pytest.mark.parametrize(
    ("pool_cls", "start_method", "is_made"),
    [(TaskPool, "fork", True), (TaskPool, "spawn", False), (SoloPool, "fork", False)],
)
def test_only_a_pool_that_forks_gets_a_keeper(
    parent: Any, nodes: Nodes, pool_cls: type, start_method: str, is_made: bool
) -> None:
    parent.pool_cls, parent.pool_start_method = pool_cls, start_method
    bootsteps.PoolKeeper(parent).create(parent)
    assert (os.getpid() in keepers) == (is_made and is_supported())


@linux_only("has pidfds", is_there=is_supported())
@pytest.mark.parametrize("call", [(os, "pidfd_open"), (signal, "pidfd_send_signal")])
@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_or_sandbox_without_pidfds_gets_no_keeper(
    parent: Any, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, call: tuple[Any, str], error: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(*call, refuse)
    bootsteps.PoolKeeper(parent).create(parent)
    assert os.getpid() not in keepers


def test_a_stopping_worker_lets_its_pool_end_waits(parent: Any, nodes: Nodes) -> None:
    step = bootsteps.PoolKeeper(parent)
    step.create(parent)
    assert not pool_process.is_shutting_down()
    step.stop(parent)
    assert pool_process.is_shutting_down()
    _, keeper = keepers[os.getpid()]
    assert keeper._table.is_shutting_down()
    step.create(parent)
    assert not pool_process.is_shutting_down(), "a worker that is started again in this process"


def test_a_soft_shutdown_ends_waits_before_its_timeout(parent: Any, nodes: Nodes) -> None:
    seen: list[bool] = []
    parent.wait_for_soft_shutdown = lambda: seen.append(pool_process.is_shutting_down())
    bootsteps.PoolKeeper(parent).create(parent)
    assert not pool_process.is_shutting_down()
    parent.wait_for_soft_shutdown()
    assert seen == [True]
    _, keeper = keepers[os.getpid()]
    assert keeper._table.is_shutting_down()


@pytest.mark.parametrize("task", ["tasks.sync", "tasks.other"])
def test_an_unreadable_message_is_discarded_then_released(
    parent: Any, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    calls: list[object] = []
    reservation = ["tasks.sync:1", new_owner("id", is_reservation=True)]
    message = SimpleNamespace(headers={"task": task, HEADER: reservation})
    parent.on_decode_error = lambda message, error: calls.append((message, str(error)))
    redlock = SimpleNamespace(release_owner=lambda key, owner: calls.append([key, owner]))
    monkeypatch.setattr(signal_handlers, "redlock_of", {parent.app: redlock}.__getitem__)
    bootsteps.UnreadableMessages(parent).create(parent)
    parent.on_decode_error(message, ValueError("cut off"))
    released = [reservation] if task == "tasks.sync" else []
    assert calls == [(message, "cut off"), *released]
