"""The type checkers that this project's users have, on one file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.root import ROOT

PUBLIC_API = ROOT / "tests" / "typing" / "public_api.py"
Check = Callable[[Path], "subprocess.CompletedProcess[str]"]


def mypy(file: Path) -> subprocess.CompletedProcess[str]:
    """Check a file as this project's own are checked."""
    return _run("mypy", "--config-file", "pyproject.toml", str(file))


def pyright(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Check a file as an editor does, strictly."""
    return _run("pyright", "--pythonpath", sys.executable, *options, str(file))


def mypy_errors(file: Path) -> dict[int, list[str]]:
    """Return mypy's errors by line, each with its code."""
    found: dict[int, list[str]] = {}
    for line, said in re.findall(rf"{file.name}:(\d+): error: (.*)", mypy(file).stdout):
        found.setdefault(int(line), []).append(" ".join(said.split()))
    return found


def pyright_errors(file: Path) -> dict[int, list[str]]:
    """Return the first line of each of pyright's errors by line, with its rule."""
    found: dict[int, list[str]] = {}
    for one in json.loads(pyright(file, "--outputjson").stdout)["generalDiagnostics"]:
        said = f"{one['message'].splitlines()[0]} ({one['rule']})"
        found.setdefault(one["range"]["start"]["line"] + 1, []).append(said)
    return found


def _run(checker: str, *args: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip(checker)
    command = [sys.executable, "-m", checker, *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
