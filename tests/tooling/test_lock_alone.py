"""`make lock` selects the tests of the lock, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import lock_alone


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which the tests' support is of the lock, or above it."""
    monkeypatch.setattr(lock_alone, "ROOT", tmp_path)
    for name, text in {
        "crowd.py": "from celery_redlock.redlock import Redlock",
        "workers.py": "from celery import Celery",
    }.items():
        file = tmp_path / "tests" / "support" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def is_selected(root: Path, text: str) -> bool:
    file = root / "tests" / "unit" / "room" / "test_it.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return lock_alone.is_of_the_lock_alone(file)


@pytest.mark.parametrize(
    "text",
    [
        "from celery_redlock.redlock import Redlock",
        "from celery_redlock.redlock.quorum import T\nfrom celery_redlock.testing import S",
        "from tests.support.crowd import Crowd",
        "from ...support.crowd import Crowd",
        "from tests.model import protocol",
    ],
)
def test_a_test_that_imports_the_lock_only_is_selected(root: Path, text: str) -> None:
    assert is_selected(root, text)


@pytest.mark.parametrize(
    "text",
    [
        "import json",
        "from celery_redlock.redlock import Redlock\nfrom celery_redlock import settings",
        "from celery_redlock.redlock import Redlock\nfrom celery_redlock.beat import due",
        "from celery_redlock.redlock import Redlock\nimport celery.app",
        "from celery_redlock.redlock import Redlock\nfrom tests.support import workers",
        "from celery_redlock.redlock import Redlock\nfrom ...support.workers import Worker",
        "from celery_redlock.redlock import Redlock\ndef test_it():\n    from celery import Celery",
    ],
)
def test_a_test_that_imports_anything_above_is_not(root: Path, text: str) -> None:
    assert not is_selected(root, text)
