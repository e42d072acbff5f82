"""Output of the commands, whatever the locks are named and wherever it goes."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_redlock.cli import redlock as with_app
from celery_redlock.cli.alone import main
from celery_redlock.operate import node_status
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Ran, Run

EVIL = "\x1b]0;title\x07\x1b[8m\r\n\x9b2J\x7f\u202e"
KEY = f"key{EVIL}"
COMMANDS = [
    ("list",), ("list", "--json"), ("list", "--kind", "done"), ("show", KEY),
    ("show", KEY, "--json"), ("release", KEY), ("release", KEY, "--json"),
    ("release", KEY, "--expect", EVIL), ("release", KEY, "--done", f"task{EVIL}"),
    ("release", KEY, "--done", EVIL), ("release", KEY, "--yes"), ("top", "--count", "1"),
    ("top", "--count", "1", "--json"),
]  # fmt: skip


@pytest.fixture
def evil(redlock: TaskLock) -> None:
    """Locks of somebody who wants to be seen by a terminal."""
    redlock.acquire(KEY, 30, label=f"task{EVIL}")
    redlock.mark_done(KEY, f"task{EVIL}")


@pytest.mark.usefixtures("evil")
@pytest.mark.parametrize("words", COMMANDS, ids=ascii)
def test_a_terminal_gets_nothing_to_act_on(run: Run, words: tuple[str, ...]) -> None:
    output = run(*words).output
    assert output
    assert [one for one in output if not (one.isprintable() or one == "\n")] == []


@pytest.mark.usefixtures("evil")
def test_json_has_the_names_as_they_are(run: Run) -> None:
    (lock,) = map(json.loads, run("list", "--json").output.splitlines())
    assert (lock["key"], lock["task_id"]) == (KEY, f"task{EVIL}")
    assert run("show", KEY, "--json").json["key"] == KEY


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", "ключ", "--json")])
def test_output_need_not_be_utf_8(
    three: Operated, redlock: TaskLock, words: tuple[str, ...]
) -> None:
    redlock.acquire("ключ", 30, label="é😀")
    nodes = [word for url in three.urls for word in ("--node", url)]
    ran = CliRunner(charset="latin-1").invoke(main, [*nodes, *words], catch_exceptions=False)
    assert ran.exit_code == 0
    if "--json" in words:
        assert json.loads(ran.output)["key"] == "ключ"
        assert r"\ud83d\ude00" in ran.output
    assert r"\u043a\u043b\u044e\u0447" in ran.output


def test_output_in_utf_8_has_every_letter(redlock: TaskLock, run: Run) -> None:
    redlock.acquire("ключ", 30)
    for words in (("list", "--json"), ("show", "ключ", "--json")):
        assert '"key": "ключ"' in run(*words).output


def test_output_may_go_to_any_object_of_python(three: Operated) -> None:
    with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        main([*(word for url in three.urls for word in ("--node", url)), "status"])
    assert printed.getvalue().endswith("Locks work: 3 of 3 nodes vote, and 1 may fail.\n")


def failing(patch: pytest.MonkeyPatch, error: int) -> None:
    """Let the command `status` fail with an error of the operating system."""

    def fail(*_: object) -> None:
        raise OSError(error, "disk")

    patch.setattr(node_status, "read_statuses", fail)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_is_an_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    failing(monkeypatch, error)
    assert run("status") == Ran(1, "Error: the output can't be written: disk\n")


def test_another_error_of_the_system_is_raised_as_it_is(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="disk"):
        run("status")


def test_nothing_more_is_written_to_a_disk_without_room(
    three: Operated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing(monkeypatch, errno.ENOSPC)
    path = tmp_path / "output"
    with path.open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit):
            main([*(word for url in three.urls for word in ("--node", url)), "status"])
        output.write("as Python ends")
    assert path.read_text() == ""


def test_a_full_disk_is_an_error_and_no_traceback() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    code = "from celery_redlock.cli.alone import main; main()"
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-c", code, "--node", "redis://127.0.0.1:1", "status"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ran.stderr == "Error: the output can't be written: No space left on device\n"
    assert ran.returncode == 1


@pytest.mark.parametrize("has_app", [False, True])
def test_no_color_is_wanted_by_the_variable(
    run: Run, bank: Celery, monkeypatch: pytest.MonkeyPatch, has_app: bool
) -> None:
    app = bank if has_app else None
    assert "\x1b" in run("status", app=app, color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("status", app=app, color=True).output


def test_no_color_is_wanted_by_celerys_option(bank: Celery) -> None:
    obj = SimpleNamespace(app=bank, no_color=True)
    result = CliRunner().invoke(with_app, ["status"], obj=obj, color=True)
    assert "votes" in result.output
    assert "\x1b" not in result.output
