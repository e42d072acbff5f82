"""The instructions that a task without a lock, and one with it, takes in its own processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from celery_redlock.testing import Servers
from tools.benchmarks.counted import VARIANTS
from tools.benchmarks.instructions import BASELINE, count, interpreter, over_plain, regressions
from tools.benchmarks.page import Page

pytestmark = pytest.mark.benchmark


def test_instructions_of_a_task_that_does_nothing(
    five: Servers, tmp_path: Path, page: Page
) -> None:
    title = "Instructions of a task that does nothing, per task"
    missing = None if shutil.which("valgrind") else "instructions are counted only with valgrind"
    if missing:
        page.add("instructions", title, [{"name": name, "missing": missing} for name in VARIANTS])
        pytest.skip(missing)
    rows = count(five.urls, tmp_path)
    page.add("instructions", title, rows)
    baselines = json.loads(BASELINE.read_text())
    # Of another interpreter nothing is known yet: `python -m tools.benchmarks.instructions`.
    assert regressions(over_plain(rows), baselines.get(interpreter(), {})) == []
