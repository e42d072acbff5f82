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
    assert "pip install --no-compile --quiet" in lines[said + 1] or has_uv


@pytest.mark.parametrize(("computing", "waiting"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_tests_fail_if_either_part_fails(tmp_path: Path, computing: int, waiting: int) -> None:
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *tests/unit*) echo "computed"; exit {computing};; esac\n'
        f'echo "waited"; exit {waiting}\n'
    )
    python.chmod(0o755)
    for done in (".test", ".compiled"):
        (tmp_path / done).touch()
    # Not as part of the `make` that runs the tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ran = subprocess.run(
        ["make", "test", f"VENV={tmp_path}"],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert bool(ran.returncode) == bool(computing or waiting)
    *_, first, _, last = ran.stdout.splitlines()
    assert (first, last) == ("waited", "computed")
