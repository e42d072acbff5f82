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

from celery_redlock.pools import pool_process
from celery_redlock.pools.prefork_keeper import is_supported
from celery_redlock.redlock import ConfigurationError
from celery_redlock.worker import bootsteps
from celery_redlock.worker.signal_handlers import keepers


class Nodes:
    """A lock of three nodes, some of which can't be used."""

    nodes = ("a", "b", "c")
    quorum = 2

    def __init__(self, **why: str) -> None:
        self.why = why
        self.error: ConfigurationError | None = None
        self.is_closed = False

    def check(self) -> dict[str, str]:
        if self.error:
            raise self.error
        return self.why

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def parent() -> Iterator[Any]:
    """A worker with a prefork pool."""
    app = Celery("bank", set_as_current=False)
    app.conf.update(redlock_nodes=["redis://127.0.0.1:1"])
    yield SimpleNamespace(app=app, pool_cls=TaskPool, steps=[])
    keepers.pop(os.getpid(), None)
    pool_process.note_shutdown(is_under_way=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    nodes = Nodes()
    monkeypatch.setattr(bootsteps, "new_redlock", lambda settings: nodes)
    return nodes


def check(parent: Any) -> None:
    bootsteps.CheckNodes(parent).create(parent)


def test_too_few_nodes_at_the_start_are_an_error_line(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.why = {"a": "refused", "c": "full"}
    check(parent)
    assert caplog.messages == [
        "no quorum at start, no lock can be acquired up=1 of=3 errors=a: refused; c: full"
    ]
    assert nodes.is_closed


def test_a_quorum_at_the_start_is_no_line(
    parent: Any, nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "celery_redlock")
    nodes.why = {"a": "refused"}
    check(parent)
    assert caplog.messages == []


def test_nodes_that_can_never_be_a_quorum_stop_the_worker(parent: Any, nodes: Nodes) -> None:
    nodes.error = ConfigurationError("node a is a slave")
    with pytest.raises(ConfigurationError):
        check(parent)
    assert nodes.is_closed


def test_a_worker_that_locks_nothing_asks_no_node(parent: Any, nodes: Nodes) -> None:
    parent.app.conf.update(redlock_enabled=False)
    nodes.error = ConfigurationError("node a is a slave")
    check(parent)
    bootsteps.PoolKeeper(parent).create(parent)
    assert os.getpid() not in keepers


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


@pytest.mark.skipif(not is_supported(), reason="there are no pidfds here either")
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
