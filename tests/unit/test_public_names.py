"""What `celery_redlock` offers by name, and what importing it does not bring along."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import celery_redlock

PACKAGE = Path(celery_redlock.__file__).parent
PUBLIC = {
    "Acquired", "AlreadyDone", "ConfigurationError", "DuplicateTask", "Event", "Holder",
    "Lease", "LeaseLost", "LockHeld", "Lost", "NodeDown", "NodeRefuses", "NodeUp", "Observer",
    "QuorumUnavailable", "Redlock", "RedlockError", "Refused", "Released", "SingletonTask",
    "__version__", "current_lease", "lock_acquired", "lock_conflict", "lock_lost",
    "lock_released", "lock_unavailable", "lock_wait_began", "lock_wait_ended", "node_down",
    "node_up", "nodes_checked", "quorum_degraded", "singleton_task", "tick_processed",
}  # fmt: skip
"""The promise: a name that goes from here breaks somebody's code."""


def modules_after(code: str) -> set[str]:
    """Return which modules a new interpreter has loaded after `code`, by their first names."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_all_lists_the_public_names_and_nothing_else() -> None:
    assert set(celery_redlock.__all__) == PUBLIC
    assert len(celery_redlock.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_there_and_stays_the_same(name: str) -> None:
    first = getattr(celery_redlock, name)
    assert first is not None
    assert getattr(celery_redlock, name) is first
    assert name in dir(celery_redlock)


def test_a_star_import_gives_every_public_name() -> None:
    names: dict[str, object] = {}
    exec("from celery_redlock import *", names)  # noqa: S102 - a star import works on a module only
    assert PUBLIC - {"__version__"} <= names.keys()


def test_what_is_not_there_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'celery_redlock' has no attribute 'Relock'"):
        celery_redlock.Relock  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Relock'"):
        from celery_redlock import Relock  # type: ignore[attr-defined]  # noqa: F401, PLC0415
    assert not hasattr(celery_redlock, "singleton")


def test_type_checkers_see_the_names_that_are_there_at_run_time() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    [checked] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {}
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "only `X as X` is re-exported"
            seen[alias.name] = importlib.import_module(f"celery_redlock.{node.module}")
    assert seen.keys() == PUBLIC - {"__version__"}
    for name, module in seen.items():
        assert getattr(celery_redlock, name) is getattr(module, name)


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_version_is_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?", celery_redlock.__version__)


def test_importing_the_package_imports_neither_celery_nor_redis() -> None:
    assert not {"celery", "kombu", "redis", "hiredis"} & modules_after("import celery_redlock")


@pytest.mark.parametrize(
    "code",
    [
        "from celery_redlock import Redlock, LockHeld, Lease",
        "import celery_redlock; dir(celery_redlock); celery_redlock.Redlock",
    ],
)
def test_the_lock_comes_without_celery(code: str) -> None:
    loaded = modules_after(code)
    assert "redis" in loaded
    assert not {"celery", "kombu", "billiard", "vine"} & loaded


def test_importing_the_tasks_makes_no_app() -> None:
    # Celery makes a default app for whoever asks for the current one before there is any.
    modules_after(
        "from celery_redlock import SingletonTask, singleton_task, current_lease\n"
        "from celery import _state\n"
        "current_lease()\n"
        "@singleton_task\n"
        "def task(): ...\n"
        "assert not list(_state._get_active_apps()) and _state.default_app is None"
    )
