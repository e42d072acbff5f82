"""`celery redlock release` on real servers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest

from celery_redlock import LeaseLost
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
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
