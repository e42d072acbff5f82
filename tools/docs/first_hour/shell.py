"""A stranger's terminals: nothing but what is installed in one virtual environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 300.0
# A session at Python's prompt: each line is shown, then run.
_TYPE = """
import code, sys
console = code.InteractiveConsole()
for line in sys.stdin.read().splitlines():
    print(">>> " + line, flush=True)
    console.push(line)
"""


class WalkError(Exception):
    """A command ended otherwise than the stranger expects; the message has its output."""


@dataclass(slots=True)
class Shell:
    """Commands in one folder, and what they said.

    Attributes:
        venv: The virtual environment that is activated.
        folder: The folder in which commands are run.
        variables: More environment variables.
        typed: What was typed and said so far: commands with their output.
    """

    venv: Path
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    typed: list[str] = field(default_factory=list)

    def run(self, command: str, *, expects: int = 0) -> str:
        """Run a command to its end; return its output."""
        return self._run(["/bin/sh", "-c", command], f"$ {command}\n", expects=expects)

    def session(self, *lines: str) -> str:
        """Type lines at Python's prompt; return all that the terminal shows."""
        return self._run([str(self.venv / "bin" / "python"), "-u", "-c", _TYPE], "", lines=lines)

    @contextmanager
    def terminal(self, command: str, ready: str) -> Iterator[Callable[[], str]]:
        """Run a command in a terminal of its own; give a function that returns its output.

        It is left when `ready` was said, and ended by Ctrl-C.
        """
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], cwd=self.folder, env=self._environment(),
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.typed.append(f"$ {command}")
        try:
            wait_for(lambda: ready in log.read_text() or process.poll() is not None, command)
            if process.poll() is not None:
                raise WalkError(f"$ {command}\n{log.read_text()}")
            yield log.read_text
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.communicate()

    def _run(
        self, words: list[str], shown: str, *, lines: tuple[str, ...] = (), expects: int = 0
    ) -> str:
        ended = subprocess.run(
            words, cwd=self.folder, env=self._environment(), input="\n".join(lines), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        if ended.returncode != expects:
            raise WalkError(f"{shown}{ended.stdout}\nexit status {ended.returncode}")
        self.typed.append((shown + ended.stdout).rstrip())
        return ended.stdout

    def _environment(self) -> dict[str, str]:
        given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return given | {"PATH": path, "PYTHONUNBUFFERED": "1"} | self.variables


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Return when a condition holds.

    Raises:
        WalkError: It did not hold within `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise WalkError(f"waited for {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.1)


def default_interrupts() -> None:
    """Let Ctrl-C end what is started here: a job in a script's background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def base_python() -> str:
    """Return the Python that made the environment of this process."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
