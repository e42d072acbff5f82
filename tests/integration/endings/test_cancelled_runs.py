"""Celery cancels what it runs: a run that is put back has not ended, one that is revoked has.

The tasks are acknowledged late and not rejected when their process is lost: what becomes of the
message is for Celery to say, which cancels in the worker's main process.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.faults.redelivery import (
    capture,
    deliver,
    deliver_copy,
    restoring_often,
    wait_until_settled,
)
from tests.support.processes.project import Project
from tests.support.processes.workers import GREEN_POOLS, Worker
from tests.support.versions import (
    REVOKE_SPARES_WHAT_RUNS,
    SURVIVES_WHAT_CAN_NOT_BE_CANCELLED,
    TELLS_OF_TIMEOUTS,
)

LATE = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
LOSS = {
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "worker_enable_prefetch_count_reduction": False,
}


def assert_it_runs_again(project: Project, result: Any, key: str) -> None:
    """The run is over and the lock free; the message comes again, and its run is the one."""
    second = project.wait_for_note("begin", task_id=result.id, count=2)
    project.open(key)
    # The first answer may be that of the cancelled run: it is to be retried.
    assert result.get(timeout=PATIENCE) == second.token
    tokens = [run.token or 0 for run in project.notes("begin", task_id=result.id)]
    assert len(tokens) == 2
    assert tokens == sorted(set(tokens))
    assert [run.token for run in project.notes("end", task_id=result.id)] == [second.token]
    eventually(lambda: not project.holds(key), "the lock is free")


# --- the connection to the broker is lost ---------------------------------------------------------


@pytest.fixture(scope="module")
def proxy(rabbitmq: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(rabbitmq).port or 5672) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def on_rabbitmq(new_project: NewProject, rabbitmq: str, proxy: Proxy) -> Iterator[Project]:
    """A project on RabbitMQ; `through` is how its workers reach it."""
    project = new_project("redelivered", broker=rabbitmq, **LATE, **LOSS)
    yield project
    project.leave_rabbitmq(rabbitmq)


def start_worker_behind(project: Project, proxy: Proxy, pool: str) -> Worker:
    address = urlsplit(str(project.conf["broker_url"]))
    user = f"{address.username}:{address.password}@" if address.username else ""
    url = address._replace(netloc=f"{user}127.0.0.1:{proxy.port}").geturl()
    return project.start_worker(env={"CELERY_BROKER_URL": url}, pool=pool, concurrency=2)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_a_run_cancelled_by_a_lost_connection_runs_again(
    on_rabbitmq: Project, proxy: Proxy, pool: str
) -> None:
    project, key = on_rabbitmq, f"rabbitmq-{pool}"
    worker = start_worker_behind(project, proxy, pool)
    result = project.tasks.plain.delay(key, key)
    project.run_of(result.id)
    proxy.reset()
    assert_it_runs_again(project, result, key)
    eventually(lambda: project.queue_length() == 0)
    worker.stop()


def test_a_thread_that_no_lost_connection_cancels_runs_once(
    on_rabbitmq: Project, proxy: Proxy
) -> None:
    project, key = on_rabbitmq, "rabbitmq-threads"
    worker = start_worker_behind(project, proxy, "threads")
    result = project.tasks.plain.delay(key, key)
    run = project.run_of(result.id)
    proxy.reset()
    if not SURVIVES_WHAT_CAN_NOT_BE_CANCELLED:
        worker.wait_for_line("does not implement kill_job")
        project.open(key)
        worker.wait_until_ended()
        worker = start_worker_behind(project, proxy, "threads")
        assert result.get(timeout=PATIENCE) >= (run.token or 0)
        worker.stop()
        return
    worker.wait_for_line(f"task_id={result.id} .*outcome=parked")
    project.open(key)
    assert result.get(timeout=PATIENCE) == run.token
    eventually(lambda: project.queue_length() == 0)
    assert len(project.notes("begin", task_id=result.id)) == 1
    worker.stop()


def test_a_run_cancelled_on_a_redis_broker_runs_again(new_project: NewProject) -> None:
    brief = {"visibility_timeout": 3, "unacked_restore_interval": 1}
    project, key = new_project("redelivered", broker_transport_options=brief, **LATE, **LOSS), "key"
    with Proxy(urlsplit(str(project.conf["broker_url"])).port or 0) as proxy:
        worker = start_worker_behind(project, proxy, "prefork")
        result = project.tasks.plain.delay(key, key)
        project.run_of(result.id)
        proxy.reset()
        with restoring_often(project):
            assert_it_runs_again(project, result, key)
        worker.stop()


# --- the worker is shut down ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("redelivered", **LATE)


@pytest.fixture(scope="module")
def soft(new_project: NewProject) -> Project:
    return new_project("redelivered", **LATE, worker_soft_shutdown_timeout=0.5)


SHUTDOWNS = {
    "cold": (signal.SIGQUIT, {}),
    "soft": (signal.SIGQUIT, {}),
    "remapped": (signal.SIGTERM, {"REMAP_SIGTERM": "SIGQUIT"}),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "pool"), [*((how, "prefork") for how in SHUTDOWNS), *(("cold", p) for p in GREEN_POOLS)]
)
def test_a_run_cancelled_by_a_shutdown_runs_again(
    project: Project, soft: Project, key: str, how: str, pool: str
) -> None:
    project = soft if how == "soft" else project
    number, env = SHUTDOWNS[how]
    worker = project.start_worker(concurrency=2, env=env, pool=pool)
    result = project.tasks.plain.delay(key, key)
    project.run_of(result.id)
    worker.ask_to_end(number)
    worker.wait_until_ended()
    other = project.start_worker(concurrency=2)
    assert_it_runs_again(project, result, key)
    other.stop()


# --- somebody revokes it --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", *GREEN_POOLS])
def test_a_run_that_is_revoked_is_not_run_by_its_copy(
    project: Project, key: str, pool: str
) -> None:
    worker = project.start_worker(concurrency=2, pool=pool)
    # Greenlets listen to remote control a moment after the worker is ready.
    eventually(lambda: project.app.control.ping(timeout=1.0), "the worker listens")
    message = capture(project, project.tasks.plain, key, key)
    deliver(project, message)
    project.run_of(message.task_id)
    result: Any = project.app.AsyncResult(message.task_id)
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=PATIENCE)
    worker.stop()
    # One that has not heard of it.
    other = project.start_worker(concurrency=2)
    deliver_copy(project, message)
    other.wait_for_line(
        f"message handled by another copy, copy discarded.*task_id={message.task_id}"
    )
    wait_until_settled(project)
    assert len(project.notes("begin", task_id=message.task_id)) == 1
    assert result.state == "REVOKED"
    other.stop()


@pytest.mark.skipif(not TELLS_OF_TIMEOUTS, reason="gevent's time limits send no signal")
def test_a_greenlet_over_its_time_limit_is_not_run_by_its_copy(project: Project, key: str) -> None:
    worker = project.start_worker(concurrency=4, pool="gevent")
    message = capture(project, project.tasks.limited, key, key)
    deliver(project, message)
    project.run_of(message.task_id)
    deliver_copy(project, message)
    worker.wait_for_line(f"task_id={message.task_id} .*outcome=parked")
    worker.wait_for_line(
        f"message handled by another copy, copy discarded.*task_id={message.task_id}"
    )
    wait_until_settled(project)
    assert len(project.notes("begin", task_id=message.task_id)) == 1
    result: Any = project.app.AsyncResult(message.task_id)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=PATIENCE)
    worker.stop()


def test_a_run_that_is_revoked_without_a_signal_ends_as_it_would(
    project: Project, key: str
) -> None:
    worker = project.start_worker(concurrency=2)
    result = project.tasks.plain.delay(key, key)
    run = project.run_of(result.id)
    result.revoke()
    worker.wait_for_line(f"flagged as revoked: {result.id}|{result.id}.*revoked")
    project.open(key)
    if REVOKE_SPARES_WHAT_RUNS:
        assert result.get(timeout=PATIENCE) == run.token
    worker.wait_for_line(f"{result.id}.* succeeded")
    # Asked anew: a result that has been REVOKED would remember that.
    assert project.app.AsyncResult(result.id).result == run.token
    wait_until_settled(project)
    worker.stop()
