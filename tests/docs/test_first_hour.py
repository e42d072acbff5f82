"""The report of the first hour shows the recorded walk, and the walk follows the pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.root import ROOT
from tools.docs.first_hour.page import read_record, recorded_walk, report
from tools.docs.first_hour.shell import Shell, WalkError
from tools.docs.first_hour.walk import TESTING, Step, save_files


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    return Shell(tmp_path / "venv", tmp_path)


def test_the_record_has_each_step_of_a_first_hour() -> None:
    assert [step["name"] for step in read_record()["steps"]] == [
        "Install", "First task", "Conflict", "Test", "Doctor", "Two beats in Django",
    ]  # fmt: skip


def test_another_time_makes_another_report() -> None:
    page = report(recorded_walk([Step("Install", 12.34, ["$ pip"], "a|b")]))
    assert "| Install | 12.3 | a\\|b |\n| **all** | **12** | |" in page
    assert "## 1. Install\n\n```text\n$ pip\n```" in page


def test_each_typed_command_of_the_tutorial_is_reported() -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    page = report(read_record())
    for command in ("python3 -m venv", "pip install 'celery-redlock", "python servers.py",
                    "celery -A shop worker"):  # fmt: skip
        assert f"$ {command}" in tutorial
        assert f"$ {command}" in page


def test_each_file_of_a_page_is_saved_where_it_says(tmp_path: Path) -> None:
    save_files(TESTING, tmp_path)
    assert (tmp_path / "conftest.py").is_file()
    assert (tmp_path / "shared" / "conftest.py").is_file()


def test_a_command_that_fails_ends_the_walk(shell: Shell) -> None:
    with pytest.raises(WalkError, match="exit status 3"):
        shell.run("echo no; exit 3")
    assert shell.run("echo no; exit 3", expects=3) == "no\n"
    assert shell.typed == ["$ echo no; exit 3\nno"]


def test_a_terminal_that_ends_before_it_is_ready_ends_the_walk(shell: Shell) -> None:
    with pytest.raises(WalkError, match="too old"), shell.terminal("echo too old", "ready"):
        pass


def test_a_session_shows_lines_results_and_errors(shell: Shell) -> None:
    said = shell.session("number = 6 * 7", "number", "1 / 0")
    assert said.startswith(">>> number = 6 * 7\n>>> number\n42\n>>> 1 / 0\nTraceback")
