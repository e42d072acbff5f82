"""Walk README and tutorial as a reader does, word by word. Copied and run by `wheel.py`.

Files are saved, commands typed at a shell's prompt and sessions at Python's, with nothing installed
but the wheel. Two things are other than printed: what installs the package is left out, since the
wheel is not published yet; and the Redis server of the machine is one that is started here.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from celery_redlock.testing import start_servers

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PATIENCE_S = 90.0
READY = {"python servers.py": "Four servers are running", "celery": " ready."}
# With a pause before each line, as when a person types: what is sent first is taken first.
TYPE_SESSION = """
import doctest, pathlib, sys, time

class Typist(doctest.DocTestRunner):
    def report_start(self, out, test, example):
        time.sleep(0.5)

sys.path.insert(0, "")
text = pathlib.Path(sys.argv[1]).read_text()
typist = Typist(optionflags=doctest.ELLIPSIS)
typist.run(doctest.DocTestParser().get_doctest(text, {}, "session", None, 0))
sys.exit(typist.failures)
"""
# The session of the README shows no output: which of two calls runs is open.
README_SAYS = r"^\d{16}\nnot run: task \S+ has held 'bank\.sync:42' since [\d: -]+ UTC; "


def main() -> None:
    """Walk both pages, each in a folder of its own."""
    # A job in a script's background ignores it, and so would all that are started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    readme, tutorial = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    with start_servers(1) as [redis], new_folder() as folder:
        said = walk(readme.replace("redis://localhost", redis.url), folder)
        if "quorum of one" not in (folder / "0.log").read_text():
            raise SystemExit("README: the worker did not say that it has one node")
        lines = "\n".join(sorted(said.splitlines()))
        if not re.search(README_SAYS, lines, re.MULTILINE):
            raise SystemExit(f"README: two calls ended otherwise than it says:\n{said}")
    with new_folder() as folder:
        walk(tutorial, folder)
    print("README and tutorial: each line did what it says", flush=True)


@contextmanager
def new_folder() -> Iterator[Path]:
    """Make a folder of a reader's."""
    with tempfile.TemporaryDirectory(prefix="celery-redlock-walk-") as name:
        yield Path(name)


def walk(page: str, folder: Path) -> str:
    """Do what a page says; return what the sessions print beyond what is shown."""
    steps = BLOCK.findall(page)
    for _, title, code in steps:
        if title:
            (folder / title).write_text(code, encoding="utf-8")
    commands = [
        line.removeprefix("$ ").strip()
        for language, _, code in steps
        if language == "console"
        for line in code.splitlines()
        if line.startswith(("$ python servers", "$ celery -A"))
    ]
    session = "\n".join(code for language, _, code in steps if language == "pycon")
    with ExitStack() as terminals:
        for number, command in enumerate(commands):
            terminals.enter_context(terminal(command, folder, folder / f"{number}.log"))
        return type_session(session, folder)


@contextmanager
def terminal(command: str, folder: Path, log: Path) -> Iterator[None]:
    """Type a command, wait until it is ready, and press Ctrl-C in the end."""
    ready = next(text for start, text in READY.items() if command.startswith(start))
    with log.open("w") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], cwd=folder, env=environment(),
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while ready not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"$ {command}\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()


def type_session(session: str, folder: Path) -> str:
    """Type a session at Python's prompt; return what it prints beyond what it shows."""
    shows_output = any(one.want for one in doctest.DocTestParser().get_examples(session))
    if shows_output:
        (folder / "session.txt").write_text(session, encoding="utf-8")
        typed = [sys.executable, "-u", "-c", TYPE_SESSION, "session.txt"]
    else:
        examples = doctest.DocTestParser().get_examples(session)
        typed = [sys.executable, "-u", "-c", "".join(one.source for one in examples)]
    ended = subprocess.run(
        typed, cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if ended.returncode:
        logs = "\n".join(log.read_text() for log in sorted(folder.glob("*.log")))
        raise SystemExit(ended.stdout + ended.stderr + logs)
    return ended.stdout


def environment() -> dict[str, str]:
    """Return the environment of a shell in which the virtual environment is activated."""
    # Printed lines must be in a log at once; nothing says where modules are.
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return given | {"PATH": path, "PYTHONUNBUFFERED": "1"}


if __name__ == "__main__":
    main()
