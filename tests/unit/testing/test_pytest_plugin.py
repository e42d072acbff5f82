"""The fixtures of the pytest plugin, which pytest has loaded for this very run."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from threading import Event
from typing import Any
from unittest.mock import Mock, call

import pytest
from celery import Celery

from celery_redlock import DuplicateTask, LeaseLost, LockHeld, SingletonTask, singleton_task
from celery_redlock.config import app_lock
from celery_redlock.execution import running
from celery_redlock.pools import interrupt
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.signals import lock_lost
from celery_redlock.task.typed_options import LifetimeName
from celery_redlock.testing import Locks, MemoryServers, locks, pytest_plugin
from tests.support.eventually import eventually
from tests.support.processes.project import celery_to_itself
from tests.unit.test_public_names import modules_after


@pytest.fixture
def redlock_app() -> Iterator[Celery]:
    with celery_to_itself(), Celery("bank", broker="memory://", backend="cache+memory://") as app:
        app.conf.redlock_nodes = ["redis://never-asked"]
        yield app


Body = Callable[[], object]


@pytest.fixture
def sync(redlock_app: Celery) -> Any:
    """A task that calls its argument `body` in its body, and is locked by its `account`."""

    @singleton_task(app=redlock_app, name="sync", lock_key=["account"], shared=False)
    def sync(account: int, body: Body = bool) -> object:
        return body()

    return sync


def new_task(app: Celery, lifetime: LifetimeName) -> Any:
    """Make a task of another lifetime than `sync`, locked by its argument."""

    @singleton_task(app=app, name=lifetime, lock_lifetime=lifetime, shared=False)
    def task(account: int) -> None: ...

    return task


def test_a_held_lock_makes_a_duplicate_of_a_call(redlock_locks: Locks, sync: Any) -> None:
    with redlock_locks.hold(sync, 1):
        redlock_locks.assert_held(sync, account=1)
        assert redlock_locks.holder(sync, 1) == "another-worker"
        duplicate = redlock_locks.assert_duplicate(sync.apply((1,)))
        assert isinstance(duplicate, DuplicateTask)
        assert duplicate.holder == "another-worker"
        assert redlock_locks.runs(sync, 1) == 0
        with pytest.raises(LockHeld), redlock_locks.hold(sync, 1):
            pass
    redlock_locks.assert_free(sync, 1)
    assert redlock_locks.holder(sync, 1) is None


def test_a_duplicate_is_awaited_for_ten_seconds_unless_told(redlock_locks: Locks) -> None:
    result = Mock(**{"get.return_value": Mock(spec=DuplicateTask)})
    redlock_locks.assert_duplicate(result)
    redlock_locks.assert_duplicate(result, 3.0)
    waits = [call(timeout=seconds, propagate=False) for seconds in (10.0, 3.0)]
    assert result.get.call_args_list == waits


def test_a_run_is_counted_by_the_key_of_its_call(redlock_locks: Locks, sync: Any) -> None:
    sync.apply((1,))
    sync.apply((2,))
    sync.apply((2,))
    redlock_locks.assert_ran_once(sync, account=1)
    assert redlock_locks.runs(sync, 2) == 2


@pytest.mark.parametrize("lifetime", ["until_executing", "until_expired", "until_executed"])
def test_a_run_is_counted_whatever_its_lifetime(
    redlock_locks: Locks, redlock_app: Celery, lifetime: LifetimeName
) -> None:
    """Also of a lifetime that ends, or begins its period, before the body."""
    task = new_task(redlock_app, lifetime)
    task.apply((1,))
    redlock_locks.assert_ran_once(task, 1)
    assert redlock_locks.runs(task, 2) == 0


@pytest.mark.parametrize("lifetime", ["until_executed", "until_and_while_executing"])
def test_a_reservation_holds_the_lock_of_its_call(
    redlock_locks: Locks, redlock_app: Celery, lifetime: LifetimeName
) -> None:
    task = new_task(redlock_app, lifetime)
    published = task.delay(1)
    redlock_locks.assert_held(task, 1)
    assert redlock_locks.holder(task, 1) == published.id
    with pytest.raises(AssertionError, match=published.id):
        redlock_locks.assert_free(task, 1)
    redlock_locks.assert_free(task, 2)


def test_a_lease_is_lost_to_another_worker_on_command(redlock_locks: Locks, sync: Any) -> None:
    tokens = []

    def body() -> None:
        tokens.append(sync.lease.token)
        tokens.append(redlock_locks.lose(sync, 1).token)
        sync.lease.ensure()

    beside_another_run = sync.apply((2, partial(sync.apply, (1, body))))
    assert isinstance(beside_another_run.result.result, LeaseLost)
    assert redlock_locks.holder(sync, 1) == "another-worker"
    own, thiefs = tokens
    assert thiefs > own


def test_locks_are_held_and_lost_with_a_low_max_ttl(
    redlock_locks: Locks, redlock_app: Celery, sync: Any
) -> None:
    redlock_app.conf.redlock_max_ttl = 5.0
    with redlock_locks.hold(sync, 1) as held:
        assert held.ttl_ms == 5_000
    sync.apply((1, lambda: redlock_locks.lose(sync, 1)))
    assert redlock_locks.holder(sync, 1) == "another-worker"


def test_losing_a_lease_interrupts_the_body_that_asks_for_it(
    redlock_locks: Locks, sync: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "_is_installed", False)
    previous = signal.getsignal(signal.SIGURG)
    interrupt.install_signal_handler(running.interrupt_current)  # as a pool process does

    def body() -> None:
        redlock_locks.lose(sync, 1)
        raise AssertionError("the body has gone on")

    try:
        result = sync.apply((1, body))
    finally:
        signal.signal(signal.SIGURG, previous)
    assert isinstance(result.result, LeaseLost)
    assert redlock_locks.holder(sync, 1) == "another-worker"


def test_a_body_in_a_thread_is_interrupted_before_it_goes_on(
    redlock_locks: Locks, sync: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, tell = Event(), Keeper._report_loss

    def tell_late(*args: Any) -> None:
        gate.wait(0.2)
        tell(*args)

    monkeypatch.setattr(Keeper, "_report_loss", tell_late)
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(sync.apply, (1, partial(gate.wait, 60.0)))
        eventually(lambda: redlock_locks.runs(sync, 1))
        redlock_locks.lose(sync, 1)
        gate.set()
        assert isinstance(ending.result().result, LeaseLost)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_loss_is_awaited_until_the_run_knows_of_it(
    redlock_locks: Locks, sync: Any, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    told: list[object] = []

    def hurry(_keeper: Keeper, lease: object) -> None:
        told.append(lease if is_told else None)
        lock_lost.send(sync, lease=told[-1])

    def body() -> None:
        failure = pytest.raises(AssertionError, match=r"'sync:.*' still has its lease")
        with nullcontext() if is_told else failure:
            redlock_locks.lose(sync, 1)

    monkeypatch.setattr(Keeper, "hurry", hurry)
    monkeypatch.setattr(locks, "_NOTICE_S", 60.0 if is_told else 0.05)
    assert sync.apply((1, body)).state == "SUCCESS"
    assert len(told) == 1 or not is_told


def test_what_is_done_to_locks_ends_with_the_test(
    redlock_app: Celery, redlock_nodes: object, sync: Any
) -> None:
    with Locks(redlock_app) as one:
        sync.apply((1, partial(one.lose, sync, 1)))
        one.assert_held(sync, 1)
    one.assert_free(sync, 1)
    sync.apply((1,))
    one.assert_ran_once(sync, 1)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        (lambda locks, task: locks.assert_held(task, 1), r"sync\(1\) is not locked"),
        (lambda locks, task: locks.assert_ran_once(task, 1, body=None), r"sync\(1, .*ran 0 times"),
        (lambda locks, task: locks.assert_duplicate(task.apply((1,))), "is SUCCESS, no duplicate"),
        (lambda locks, task: locks.lose(task, 1), r"sync\(1\) does not run in this process"),
    ],
)
def test_an_assertion_that_fails_says_what_is_so(
    redlock_locks: Locks, sync: Any, claim: Callable[[Locks, Any], object], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        claim(redlock_locks, sync)


def test_a_lock_that_is_not_free_is_named_with_its_holder(redlock_locks: Locks, sync: Any) -> None:
    with redlock_locks.hold(sync, 1), pytest.raises(AssertionError, match="another-worker"):
        redlock_locks.assert_free(sync, 1)


@pytest.mark.usefixtures("redlock_disabled")
def test_without_locks_no_node_is_asked(sync: Any) -> None:
    assert sync.apply((1,)).get() is False
    assert sync.app not in app_lock._redlocks


def test_an_app_is_left_with_the_settings_and_lock_it_had(
    request: pytest.FixtureRequest, redlock_app: Celery
) -> None:
    redlock_app.conf.redlock_nodes = ["redis://mine"]
    before = app_lock.redlock_of(redlock_app)
    settings = dict(redlock_app.conf.changes or {})

    def check() -> None:
        assert redlock_app.conf.changes == settings
        assert app_lock.redlock_of(redlock_app) is before
        app_lock._redlocks.pop(redlock_app).close()

    request.addfinalizer(check)  # before `redlock_app` ends, after what is asked for below
    nodes: MemoryServers = request.getfixturevalue("redlock_nodes")
    assert redlock_app.conf.redlock_nodes == nodes.urls
    assert [node.name for node in app_lock.redlock_of(redlock_app).nodes] != ["mine:6379"]


def test_the_plugin_imports_no_celery_and_no_redis() -> None:
    loaded = modules_after("import celery_redlock.testing.pytest_plugin")
    assert not {"celery", "kombu", "redis", "hiredis"} & loaded


@pytest.mark.parametrize("other", ["celery.contrib.pytest", "pytest_celery.plugin"])
def test_no_fixture_has_the_name_of_another_plugin_s(other: str) -> None:
    ours = {name for name in vars(pytest_plugin) if name.startswith(("redlock_", "_redlock_"))}
    assert len(ours) == 7
    assert not ours & {name for name, _ in inspect.getmembers(import_module(other))}


def test_tasks_of_every_class_are_named_alike(redlock_locks: Locks, redlock_app: Celery) -> None:
    @redlock_app.task(base=SingletonTask, name="export", shared=False)
    def export(path: str) -> None: ...

    export.apply(("a",))
    redlock_locks.assert_ran_once(export, "a")
