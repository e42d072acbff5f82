"""Locks in Django's admin: in a process of its own, for Django is configured once for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import StartServers
from tests.support.root import ROOT


def test_the_admin_shows_and_releases_locks_by_permission(
    servers: StartServers, tmp_path: Path
) -> None:
    nodes = " ".join(servers(3).urls)
    command = [sys.executable, "-m", "tests.integration.apps.django_admin", str(tmp_path / "db")]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"REDLOCK_NODES": nodes}, capture_output=True,
        text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
