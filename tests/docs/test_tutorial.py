"""The tutorial, done as it says: its files, its commands, its terminals."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from celery_redlock.testing import find_server_binary
from tests.support.eventually import eventually
from tests.support.requirements import unmet
from tests.support.root import ROOT
from tools.docs.markdown import Block, blocks

TUTORIAL = ROOT / "docs" / "tutorial.md"
PATIENCE_S = 60.0

# With a pause before each line, as when a person types: what is sent first is taken first.
TYPE_SESSION = """
import doctest, pathlib, sys, time

class Typist(doctest.DocTestRunner):
    def report_start(self, out, test, example):
        time.sleep(2)

text = pathlib.Path(sys.argv[1]).read_text()
typist = Typist(optionflags=doctest.ELLIPSIS)
typist.run(doctest.DocTestParser().get_doctest(text, {}, "tutorial", None, 0))
sys.exit(typist.failures)
"""


def commands(steps: list[Block]) -> list[list[str]]:
    """Return what the reader types at the shell's prompt, except for installing."""
    lines = [
        line for step in steps if step.language == "console" for line in step.code.splitlines()
    ]
    typed = [line.removeprefix("$ ").split() for line in lines if line.startswith("$ ")]
    return [words for words in typed if words[0] in ("python", "celery")]


@contextmanager
def terminal(words: list[str], folder: Path, ready: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command until it says `ready`; end it as a reader would, with Enter or Ctrl-C."""
    log = folder / f"{words[0]}.log"
    words = [sys.executable, "-u", *([] if words[0] == "python" else ["-m"]), *words]
    words = [word for word in words if word != "python"]
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    with log.open("w") as output:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while ready not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process
        process.communicate("\n" if words[2].endswith(".py") else None, timeout=None)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_the_tutorial_works_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    try:
        find_server_binary()
    except FileNotFoundError as error:
        unmet(str(error))
    steps = list(blocks(TUTORIAL))
    for step in steps:
        if step.title:
            (tmp_path / step.title).write_text(step.code)
    # The machine may be busy with other tests.
    with (tmp_path / "shop.py").open("a") as shop:
        shop.write("app.conf.redlock_node_timeout = 20.0\n")
    session = tmp_path / "session.txt"
    session.write_text("\n".join(step.code for step in steps if step.language == "pycon"))
    servers, worker = commands(steps)
    with ExitStack() as terminals:
        terminals.enter_context(terminal(servers, tmp_path, "Four servers are running"))
        running = terminals.enter_context(terminal(worker, tmp_path, " ready."))
        typed = subprocess.run(
            [sys.executable, "-c", TYPE_SESSION, str(session)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False,
        )  # fmt: skip
        log = (tmp_path / "celery.log").read_text()
        assert typed.returncode == 0, typed.stdout + typed.stderr + log
        assert "lock conflict key=shop.rebuild_index:" in log
        assert "outcome=skip" in log
        eventually(lambda: "node down" in (tmp_path / "celery.log").read_text(), within=PATIENCE_S)
        running.terminate()
