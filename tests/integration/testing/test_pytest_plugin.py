"""The pytest plugin in a project of its own, beside the other plugins for Celery."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

BANK = """
import threading
from celery import Celery
from celery_redlock import singleton_task

app = Celery("bank", broker="memory://", backend="cache+memory://")
app.conf.redlock_nodes = ["redis://lock-a", "redis://lock-b", "redis://lock-c"]
gate = threading.Event()

@singleton_task(app=app, lock_key=["account"])
def sync(account, *, fencing_token=None):
    gate.wait(60.0)
    return fencing_token
"""
TESTS = """
import pytest
from bank import app, gate, sync
from celery.contrib.testing.worker import start_worker
from celery_redlock import LeaseLost

pytestmark = pytest.mark.usefixtures("redlock_nodes")

@pytest.fixture
def redlock_app():
    gate.set()
    return app

@pytest.fixture
def worker(redlock_locks):
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False):
        yield

@pytest.mark.usefixtures("worker")
def test_calls_in_a_worker(redlock_locks):
    gate.clear()
    first = sync.delay(1)
    while redlock_locks.holder(sync, 1) != first.id:
        pass
    redlock_locks.assert_duplicate(sync.delay(1), timeout=60.0)
    redlock_locks.assert_ran_once(sync, 1)
    thief = redlock_locks.lose(sync, 1)
    gate.set()
    with pytest.raises(LeaseLost):
        first.get(timeout=60.0)
    redlock_locks.assert_held(sync, 1)

def test_nothing_is_left_of_the_test_before(redlock_locks):
    redlock_locks.assert_free(sync, 1)
    assert redlock_locks.runs(sync, 1) == 0
    assert sync.apply((1,)).get() > 0

@pytest.mark.usefixtures("redlock_disabled")
def test_without_locks():
    assert sync.apply((1,)).get() is None

def test_on_real_servers(redlock_locks, redlock_servers):
    assert redlock_servers[0].pid
    redlock_servers[0].kill()
    assert sync.apply((1,)).get() > 0
    redlock_locks.assert_ran_once(sync, 1)

def test_beside_the_app_of_celery_s_own_plugin(celery_app):
    assert celery_app is not app
"""


@pytest.mark.usefixtures("_has_server")
def test_a_project_is_tested_with_all_plugins_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(bank=BANK, test_bank=TESTS)
    ran = pytester.runpytest_subprocess(
        "-q", "-p", "celery.contrib.pytest", "-p", "no:cacheprovider", "--durations=6"
    )
    ran.assert_outcomes(passed=5)
