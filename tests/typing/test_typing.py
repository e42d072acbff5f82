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
BODIES = """
from celery.result import AsyncResult
from celery_redlock import SingletonTask, singleton_task
from typing_extensions import assert_type

@singleton_task
def bare(*, a: int, fencing_token: int | None) -> int: return a

@singleton_task(lock_key=[])
def long(a: int, b: int, c: int, d: int, e: int, *, fencing_token: int) -> int: return a

@singleton_task(bind=True)
def bound(self: SingletonTask, a: int, *, b: int, fencing_token: int) -> int: return a

assert_type(bare.delay(a=1), AsyncResult[int])
assert_type(long.delay(1, 2, 3, 4, 5), AsyncResult[int])
assert_type(bound.delay(1, b=2), AsyncResult[int])
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


def test_pyright_demands_the_token_of_no_caller(tmp_path: Path) -> None:
    """Mypy does for some; docs/reference/api.md tells the remedy."""
    tasks = tmp_path / "tasks.py"
    tasks.write_text(BODIES)
    done = pyright(tasks)
    assert done.returncode == 0, done.stdout + done.stderr


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
