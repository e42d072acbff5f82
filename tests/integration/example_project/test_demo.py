"""The README's first command: what it promises, and that nothing outlives it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from example_project.ledger import Ledger, Run
from example_project.score import Scene, Score, mistakes
from tests.support.root import ROOT


@pytest.fixture
def folder(_has_server: None) -> Iterator[Path]:
    """Where the demo keeps its files. Its processes are known by it."""
    # Not tmp_path: a path to a unix socket may have 104 characters.
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        yield Path(name).resolve()


def start_demo(folder: Path) -> subprocess.Popen[str]:
    # Where setproctitle is installed, Celery renames its processes, and the new name would take
    # the place of the environment as well.
    renamed = {"SPT_NOENV": "1"}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "example_project.demo"],
        cwd=ROOT,
        env=os.environ | renamed | {"TMPDIR": str(folder), "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that name `folder`: the servers by where they run, the others by the
    environment they have from the demo."""
    found = []
    for process in psutil.process_iter():
        try:
            marks = [process.cwd(), *process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(str(folder) in mark for mark in marks):
            found.append(process)
    return found


def wait_until_gone(folder: Path) -> list[psutil.Process]:
    """Return what of `folder`'s processes is left after a minute, if anything is."""
    deadline = time.monotonic() + 60
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def numbers(output: str, row: str) -> list[int]:
    """Return the numbers in a row of the demo's table."""
    (line,) = (line for line in output.splitlines() if re.match(rf"│ {row} +│", line))
    return [int(cell) for cell in line.split("│")[2:-1]]


def test_the_demo_keeps_its_promises_and_leaves_nothing_behind(folder: Path) -> None:
    demo = start_demo(folder)
    output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    # sent, ran, skipped, issued, stale writes refused, duplicates
    assert numbers(output, "same invoice") == [20, 1, 19, 1, 0, 0]
    assert numbers(output, "nodes killed") == [5, 5, 0, 5, 0, 0]
    assert numbers(output, "worker frozen") == [2, 2, 0, 1, 1, 0]
    assert numbers(output, "all") == [27, 8, 19, 7, 1, 0]
    assert "19 of 20: REVOKED  DuplicateTask" in output
    assert "FAILURE  StaleToken" in output
    assert wait_until_gone(folder) == []
    assert list(folder.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "stop",
    [signal.SIGINT, signal.SIGTERM, signal.SIGKILL],
)
def test_an_interrupted_demo_leaves_no_process_nor_a_frozen_one(
    folder: Path, stop: signal.Signals
) -> None:
    if stop == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux kills processes with their parent")
    demo = start_demo(folder)
    assert demo.stdout is not None
    said = ""
    while "is frozen" not in said:
        line = demo.stdout.readline()
        assert line, said
        said += line
    # The demo, three lock nodes, the broker, the worker and its two processes.
    assert len(processes_of(folder)) >= 8
    demo.send_signal(stop)
    said += demo.communicate(timeout=600)[0]
    assert demo.returncode in (128 + stop, -stop), said
    assert wait_until_gone(folder) == []
    if stop != signal.SIGKILL:
        assert list(folder.iterdir()) == []


def test_a_wrong_number_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.claim("INV-1", 7, Run("a task", "a worker"))
    scene = Scene("one", ["INV-1"], [], Score(sent=0, ran=1, skipped=0, issued=1, refused=0))
    assert mistakes([scene], ledger) == ["one: issued is 0, must be 1"]
