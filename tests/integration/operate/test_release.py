"""`celery redlock release` on real servers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_redlock import LeaseLost, singleton_task
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.processes.commands import run_with
from tests.support.processes.ran import Run


def test_a_released_lock_is_lost_by_its_holder_and_never_revived(
    five: Servers, new_redlock: NewRedlock, run: Run
) -> None:
    redlock = new_redlock(five.urls)
    is_lost = pytest.raises(LeaseLost)
    with is_lost, redlock.lock("k", ttl=6, label="task-1") as lease:
        dry = run(five.urls, "release", "k")
        [identity] = re.findall(r"--expect (\w+)", dry.output)
        shown = run(five.urls, "release", "k", "--yes", "--expect", identity)
        assert shown.output.endswith("\nReleased.\n")
        assert shown.exit_code == 0
        assert redlock.read_holder("k") is None
        assert redlock.acquire("k", 30).token > lease.token
        eventually(lambda: lease.lost)
    assert run(five.urls, "release", "k", "--yes").exit_code in (0, 1)


@pytest.mark.parametrize("key", ["k", "k%next"])
def test_a_reservation_is_released(
    five: Servers, new_redlock: NewRedlock, run: Run, key: str
) -> None:
    redlock = new_redlock(five.urls)
    redlock.reserve(key, 60, label="task-1")
    shown = run(five.urls, "release", key, "--yes", "--json")
    assert shown.json["released"] is True
    assert redlock.read_holder(key) is None


def test_a_done_mark_is_deleted_and_nothing_else(
    five: Servers, new_redlock: NewRedlock, run: Run
) -> None:
    redlock = new_redlock(five.urls)
    redlock.acquire("k", 30)
    redlock.mark_done("k", "task-1/0/abc")
    redlock.mark_done("k", "task-2/0/abc")
    assert run(five.urls, "release", "k", "--done", "task-1/0/abc").exit_code == 0
    marks = run(five.urls, "show", "k", "--json").json["done"]
    assert len(marks) == 2
    assert run(five.urls, "release", "k", "--done", "task-1/0/abc", "--yes").exit_code == 0
    marks = run(five.urls, "show", "k", "--json").json["done"]
    assert [mark["label"] for mark in marks] == ["task-2/0/abc"]
    assert redlock.read_holder("k")


_MODULE = """
from celery import Celery

app = Celery("bank", broker="memory://")
app.conf.update(
    redlock_nodes={nodes!r}, redlock_restart_guard=False, redlock_node_timeout=20.0
)
"""


@pytest.mark.long
def test_the_line_that_is_printed_releases_the_lock_from_a_shell(
    five: Servers, new_redlock: NewRedlock, tmp_path: Path
) -> None:
    redlock = new_redlock(five.urls)
    key = """it's "$HOME"; 42"""
    redlock.acquire(key, renew=True)
    (tmp_path / "my_bank.py").write_text(_MODULE.format(nodes=five.urls), encoding="utf-8")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    line = f"celery -A my_bank redlock release {shlex.quote(key)}"
    for last in ("Nothing was released.", "Released."):
        ran = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=os.environ | {"PATH": path},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        output = ran.stdout + ran.stderr
        assert output.splitlines()[-1].startswith(last), output
        line = output.rpartition("To release it: ")[2]
    assert redlock.read_holder(key) is None


# ---- orphaned reservations


@pytest.fixture
def broker() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def app(broker: Server, five: Servers) -> Iterator[Celery]:
    with Celery("bank", broker=broker.url, set_as_current=False) as app:
        app.conf.update(
            redlock_nodes=five.urls, redlock_restart_guard=False, redlock_node_timeout=20.0
        )

        @singleton_task(
            app=app,
            shared=False,
            name="bank.report",
            lock_key="{a}",
            lock_lifetime="until_executed",
        )
        def report(a: str) -> None: ...

        @singleton_task(
            app=app, shared=False, name="bank.ring", lock_key="{a}", lock_lifetime="until_expired"
        )
        def ring(a: str) -> None: ...

        yield app


@pytest.mark.long
def test_reservations_without_a_message_are_released(
    app: Celery, broker: Server, five: Servers, new_redlock: NewRedlock
) -> None:
    app.tasks["bank.report"].delay("purged")
    app.tasks["bank.ring"].delay("purged")
    app.control.purge()
    app.tasks["bank.report"].delay("queued")
    app.tasks["bank.report"].apply_async(("elsewhere",), queue="elsewhere")
    app.tasks["bank.report"].delay("delivered")
    redlock = new_redlock(five.urls)
    redlock.reserve("other.task:1", 60)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        messages = [queue.get(timeout=10), queue.get(timeout=10)]
        messages[0].requeue()  # the other one is delivered, and not acknowledged

        dry = run_with(app, "release", "--orphaned", "--grace", "0.1")
        assert "bank.report:purged: reserved by" in dry.output
        assert "1 reservation without a message." in dry.output
        assert redlock.read_holder("bank.report:purged")

        shown = run_with(app, "release", "--orphaned", "--grace", "0.1", "--yes", "--json")
        assert [(lock["key"], lock["released"]) for lock in shown.json] == [
            ("bank.report:purged", True)
        ]
    assert redlock.read_holder("bank.report:purged") is None
    for key in (
        "bank.report:queued", "bank.report:elsewhere", "bank.report:delivered",
        "bank.ring:purged", "other.task:1",
    ):  # fmt: skip
        assert redlock.read_holder(key), key


def test_orphans_can_t_be_told_with_another_broker(five: Servers, run: Run) -> None:
    with Celery("bank", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=five.urls)
        shown = run_with(app, "release", "--orphaned")
        assert "the broker is memory, not Redis or RabbitMQ" in shown.output
        assert shown.exit_code == 1
    assert run(five.urls, "release", "--orphaned").exit_code == 2
