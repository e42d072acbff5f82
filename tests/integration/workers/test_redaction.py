"""What `celery report` and `celery inspect conf` show of nodes that have passwords."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from celery_redlock.testing import Server
from tests.support.eventually import eventually
from tests.support.root import ROOT

SECRET = "sesame"  # noqa: S105
APP = """
from celery import Celery

app = Celery("passwords", broker={broker!r})
app.conf.redlock_nodes = [
    "redis://user:sesame@127.0.0.1:1", "rediss://:sesame@127.0.0.1:2",
    "unix:///nowhere?password=sesame",
]
app.conf.worker_enable_remote_control = True
"""


def celery(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "passwords", *args],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.long
@pytest.mark.usefixtures("_has_server")
def test_no_command_shows_a_password_of_a_node(tmp_path: Path) -> None:
    with Server() as broker:
        (tmp_path / "passwords.py").write_text(APP.format(broker=f"{broker.url}/0"))
        report = celery(tmp_path, "report")
        assert "redlock_nodes: '********'" in report.stdout, report.stderr
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "passwords", "worker", "--pool", "solo"],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
                stdout=log,
                stderr=log,
            )
        try:
            answered: list[str] = []

            def is_answered() -> bool:
                answer = celery(tmp_path, "inspect", "--timeout", "5", "conf")
                answered.append(answer.stdout)
                return answer.returncode == 0

            eventually(is_answered)
        finally:
            worker.terminate()
            worker.wait(30)
        assert '"redlock_nodes": "********"' in answered[-1]
        shown = "\n".join([report.stdout, report.stderr, *answered, (tmp_path / "log").read_text()])
        assert SECRET not in shown


def test_a_broker_on_which_the_app_falls_back_is_hidden(tmp_path: Path) -> None:
    broker = "redis://user:sesame@127.0.0.1:1/0"
    (tmp_path / "passwords.py").write_text(APP.format(broker=broker))
    assert SECRET not in celery(tmp_path, "report").stdout
