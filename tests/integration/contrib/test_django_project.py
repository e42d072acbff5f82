"""The project of docs/how-to/django.md: its own tests, and a worker with two beats."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.testing import Server
from tests.conftest import StartServers
from tests.support.eventually import eventually
from tests.support.processes import beats, workers
from tests.support.processes.workers import Worker
from tests.support.root import ROOT
from tools.docs.markdown import blocks

PROJECT = ROOT / "tests" / "django_project"
PAGE = ROOT / "docs" / "how-to" / "django.md"
BEGIN = """
from django.core.management import call_command
from django.test import Client
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from payments.models import Invoice
call_command("migrate", verbosity=0)
second = IntervalSchedule.objects.create(every=1, period="seconds")
PeriodicTask.objects.create(name="close", task="payments.tasks.close_day", interval=second)
invoice = Invoice.objects.create()
assert Client().post(f"/invoices/{invoice.pk}/pay").status_code == 202
"""
END = """
from django.contrib.auth.models import User
from django.test import Client
from payments.models import Closing, Invoice
client = Client()
client.force_login(User.objects.create_superuser("root"))
assert "3 of 3 nodes vote" in client.get("/admin/celery_redlock/lock/").content.decode()
entries = client.get("/admin/django_celery_beat/periodictask/")
assert "payments.tasks.close_day" in entries.content.decode()
assert Invoice.objects.get().paid_under > 0
print(*Closing.objects.values_list("tick", flat=True))
"""


class Django:
    """The project with a database, a broker and nodes of its own."""

    def __init__(self, folder: Path, broker: str, nodes: str) -> None:
        self.folder = folder
        # As a user's, but on servers that have just been started, and on a busy machine.
        (folder / "settings_here.py").write_text(
            "from bank.settings import *\n"
            "CELERY_REDLOCK_RESTART_GUARD = False\n"
            "CELERY_REDLOCK_NODE_TIMEOUT = 20.0\n"
            "CELERY_REDLOCK_BEAT_MISFIRE_GRACE_TIME = 300\n"
        )
        self.env = {
            "DJANGO_SETTINGS_MODULE": "settings_here",
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(folder)]),
            "BANK_DATABASE": str(folder / "bank.sqlite3"),
            "BANK_BROKER": broker,
            "BANK_LOCK_NODES": nodes,
            "TMPDIR": str(folder),
        }

    def manage(self, *args: str, settings: str = "settings_here") -> str:
        """Run `manage.py`, and return its output."""
        ran = subprocess.run(
            [sys.executable, "manage.py", *args, "--settings", settings], cwd=PROJECT,
            env=os.environ | self.env, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    def run(self, code: str) -> list[str]:
        """Run code in the project, and return the lines that it prints."""
        return self.manage("shell", "--verbosity", "0", "--command", code).splitlines()


class Beat(beats.Beat):
    """One `celery beat` that finds its scheduler in the settings."""

    def __init__(self, name: str, project: Django) -> None:
        super().__init__("bank", project.folder, name=name, env=project.env)
        self._command = [sys.executable, "-m", "celery", "-A", "bank", "beat", "-l", "INFO"]


@pytest.fixture
def project(servers: StartServers, tmp_path: Path) -> Iterator[Django]:
    with Server() as broker:
        yield Django(tmp_path, broker.url, ",".join(servers(3).urls))
    workers.started.clear()


@pytest.mark.long
def test_each_tick_is_executed_once_with_two_beats(project: Django) -> None:
    project.run(BEGIN)
    worker = Worker("bank", project.folder, pool="threads", env=project.env)
    beats = [Beat("beat-1", project), Beat("beat-2", project)]
    try:
        for process in (worker, *beats):
            process.start()
        for beat in beats:
            beat.wait_for_line("Sending due task close")
        eventually(lambda: len(worker.lines(r"close_day\S+ succeeded")) >= 3, "three ticks")
        worker.wait_for_line(r"tasks\.pay\S+ succeeded")
    finally:
        for process in (*beats, worker):
            process.stop()
    published = [
        slot
        for beat in beats
        for line in beat.lines("tick published entry=close ")
        for slot in re.findall(r" slot=(\S+)", line)
    ]
    [executed] = project.run(END)
    assert len(set(published)) == len(published)
    assert len(set(executed.split())) == len(executed.split())
    # A tick that was due while the one before it ran was skipped.
    assert set(executed.split()) <= set(published)


@pytest.mark.long
def test_the_projects_own_tests_pass(project: Django) -> None:
    assert "Ran 5 tests" in project.manage("test", settings="bank.settings_test")


def test_the_pages_blocks_are_the_projects_files() -> None:
    shown = [block for block in blocks(PAGE) if block.title]
    assert {block.title for block in shown} == {
        "bank/celery.py", "bank/__init__.py", "bank/settings.py", "bank/settings_test.py",
        "payments/tasks.py", "payments/views.py", "payments/tests.py",
    }  # fmt: skip
    for block in shown:
        assert block.code in (PROJECT / str(block.title)).read_text(), block.title
