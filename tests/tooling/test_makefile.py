"""The Makefile says what it installs, and with what."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.root import ROOT


@pytest.mark.parametrize("has_uv", [False, True])
def test_an_environment_is_installed_with_the_fastest_installer(
    tmp_path: Path, has_uv: bool
) -> None:
    if has_uv:
        uv = tmp_path / "uv"
        uv.write_text("#!/bin/sh\n")
        uv.chmod(0o755)
    paths = [path for path in os.environ["PATH"].split(":") if not Path(path, "uv").exists()]
    command = ["make", "--dry-run", "--silent", "demo", f"VENV={tmp_path}/venv"]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PATH": ":".join([str(tmp_path), *paths])},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    [said] = [at for at, line in enumerate(lines) if line.startswith("echo")]
    assert "the tests and the demo need" in lines[said]
    assert lines[said + 1].startswith("uv pip install" if has_uv else f"{tmp_path}/venv/bin/python")
    assert "pip install --quiet" in lines[said + 1] or has_uv
