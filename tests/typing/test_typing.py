"""A type checker sees the public names as the documentation shows them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celery_redlock
from tests.typing.checkers import PUBLIC_API, Check, mypy, pyright

pytestmark = pytest.mark.long
WRONG = """
from celery_redlock import Redlock, current_lease, singleton_task
singleton_task(5)
current_lease().token
Redlock(['redis://a']).lock(42)
"""


@pytest.mark.parametrize("check", [mypy, pyright])
def test_the_public_names_are_typed_as_documented(check: Check) -> None:
    done = check(PUBLIC_API)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_that_test_can_fail(check: Check, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    done = check(wrong)
    lines = {int(line) for line in re.findall(r"wrong\.py:(\d+):.*error:", done.stdout)}
    assert lines == {3, 4, 5}, done.stdout + done.stderr


@pytest.mark.parametrize("check", [mypy, pyright])
def test_an_ignore_comment_without_an_error_is_reported(check: Check, tmp_path: Path) -> None:
    needless = tmp_path / "needless.py"
    needless.write_text("str(5)  # type: ignore[call-arg]\n")
    done = check(needless)
    assert done.returncode == 1, done.stdout + done.stderr


def test_every_public_name_is_checked() -> None:
    imported = {
        alias.name
        for node in ast.walk(ast.parse(PUBLIC_API.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "celery_redlock"
        for alias in node.names
    }
    assert imported == set(celery_redlock.__all__) - {"__version__"}
