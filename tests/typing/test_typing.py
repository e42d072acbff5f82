"""A type checker sees the public names as the documentation shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def mypy(*args: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_public_names_are_typed_as_documented() -> None:
    done = mypy("tests/typing/public_api.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_that_test_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from celery_redlock import Redlock, current_lease, singleton_task\n"
        "singleton_task(5)\n"
        "current_lease().token\n"
        "Redlock(['redis://a']).lock(42)\n"
    )
    done = mypy("--config-file", "pyproject.toml", str(wrong))
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 3, done.stdout + done.stderr
