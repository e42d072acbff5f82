"""pytest-celery's own fixtures, with processes in the place of its Docker containers.

Also where there is Docker: these tests are the same everywhere, and nothing is downloaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, _state
from pytest_celery import CeleryTestBackend, CeleryWorkerContainer, RedisTestBroker

from celery_redlock.testing import Server, Servers
from tests.integration.conftest import pytest_runtest_makereport
from tests.support.processes import workers
from tests.support.processes.project import celery_to_itself, disconnect
from tests.support.processes.workers import Worker

from .containers import LocalContainer, LocalRedis

__all__ = ["pytest_runtest_makereport"]
_TASKS = "tests.smoke.tasks"


@pytest.fixture(autouse=True)
def tasks() -> Iterator[ModuleType]:
    """Load the tasks anew: they are shared, and must not get into the apps of other tests.

    Nor those of other tests into this app: what they share is hidden meanwhile.
    """
    shared: set[Any] = vars(_state)["_on_app_finalizers"]
    others = {task for task in shared if task.__module__ != "celery.app.builtins"}
    with celery_to_itself():
        shared -= others
        yield importlib.import_module(_TASKS)
    shared |= others
    del sys.modules[_TASKS]


# ---- broker and result backend


@pytest.fixture
def default_redis_broker(_has_server: None) -> Iterator[LocalRedis]:
    with Server() as server:
        yield LocalRedis(server)


@pytest.fixture
def default_redis_backend(_has_server: None) -> Iterator[LocalRedis]:
    with Server() as server:
        yield LocalRedis(server)


@pytest.fixture
def celery_broker(celery_redis_broker: RedisTestBroker) -> RedisTestBroker:
    """Redis alone: the plugin would run each test with RabbitMQ, too."""
    return celery_redis_broker


@pytest.fixture
def celery_backend(default_redis_backend: LocalRedis) -> CeleryTestBackend:
    """Not the plugin's: in the end that looks at each object of this process, and wakes proxies."""
    return CeleryTestBackend(default_redis_backend)


# ---- the app and its worker


@pytest.fixture
def celery_setup_app(celery_setup_app: Celery) -> Iterator[Celery]:
    yield celery_setup_app
    disconnect(celery_setup_app)
    celery_setup_app.close()


@pytest.fixture
def default_worker_app(default_worker_app: Celery, five: Servers) -> Celery:
    """The app with its settings, which the plugin writes down for the worker."""
    default_worker_app.conf.update(
        redlock_nodes=five.urls,
        redlock_restart_guard=False,
        redlock_node_timeout=20.0,
        broker_connection_retry_on_startup=True,
    )
    return default_worker_app


@pytest.fixture
def default_worker_tasks(tasks: ModuleType) -> set[ModuleType]:
    return {tasks}


@pytest.fixture
def volume(tmp_path: Path, default_worker_initial_content: dict[str, bytes]) -> Path:
    """The folder that the worker is started with; the test may look into it."""
    for name, content in default_worker_initial_content.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return tmp_path


@pytest.fixture
def default_worker_container(
    volume: Path, default_worker_env: dict[str, Any], default_worker_app: Celery
) -> Iterator[CeleryWorkerContainer]:
    default_worker_app.set_current()  # it is not: the plugin makes more of them for the content
    env = default_worker_env | {"PYTHONPATH": str(volume)}
    worker = Worker("app", volume, concurrency=2, env=env)
    try:
        worker.start()
        worker.wait_until_ready()
        yield CeleryWorkerContainer(LocalContainer(worker))
    finally:
        worker.kill_all()  # a warm shutdown takes seconds
        workers.started[:] = [other for other in workers.started if other is not worker]
