"""The mutation gate: `python -m tools.mutation.gate [--since COMMIT] [--seconds N] [FILE …]`.

mutmut changes the rules, one place at a time, in a copy of the source tree in build/mutation, and
runs the fast tests that reach the change: those of the file's own room. The Lua scripts, which it
does not know, are changed by `lua`. A mutant that survives is a rule that no fast test protects,
unless `equivalent.json` says why it changes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

from tests.support.root import ROOT

from . import lua
from .scores import PACKAGE, Scores
from .share import files_with_code, share_of

_VALUES, _REAL = (
    "values, words and wiring: it decides nothing",
    "servers, processes, sockets and threads: tests with real ones are about it",
)
LEFT_OUT = {
    file: why
    for why, files in {
        _VALUES: (
            "__init__.py", "beat/__init__.py", "cli/__init__.py", "cli/alone.py", "cli/web.py",
            "config/options.py", "contrib/django/schedulers.py", "contrib/guards/__init__.py",
            "contrib/guards/fences.py", "keys/__init__.py", "operate/doctor/__init__.py",
            "redlock/__init__.py", "redlock/access.py", "redlock/defaults.py", "signals.py",
            "task/__init__.py", "task/typed_options.py", "task/typed_task.py",
            "testing/__init__.py", "testing/group.py", "testing/settings.py",
        ),
        _REAL: (
            "redlock/threads/dispatch.py", "redlock/threads/wakeup.py",
            "redlock/transport/lingering.py", "redlock/transport/poller.py", "testing/launch.py",
            "testing/memory_node.py", "testing/memory_servers.py", "testing/pytest_plugin.py",
            "testing/servers.py",
        ),
    }.items()
    for file in files
}  # fmt: skip
"""Files that are not mutated, below the package, and why."""
SCRIPTS = tuple(
    f"redlock/protocol/lua/{name}.lua" for name in ("grant", "confirm", "extend", "release")
)
MODULES = tuple(file for file in files_with_code() if file.endswith(".py") and file not in LEFT_OUT)
ALL = (*MODULES, *SCRIPTS)
TESTS = "tests/unit"
SLOW = (
    "redlock/transport/test_channel.py::test_only_the_interrupt_comes_out_wherever_it_strikes",
    "redlock/transport/test_connection.py::test_a_handler_that_raises_in_packing_crashes_nothing",
    "task/test_light.py",
)
"""Tests that take seconds: of every line in turn, and of other processes, which are not mutated."""


def main() -> int:
    """Run the mutants and print those that survive; return 1 if one has no reason to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help=f"files of {PACKAGE} to mutate; all by default")
    parser.add_argument("--since", help="mutate only the files that changed since this commit")
    parser.add_argument("--seconds", type=float, help="stop after so long, and record nothing")
    options = parser.parse_args()
    files = options.files or [*ALL]
    if options.since:
        files = sorted(_changed_since(options.since).intersection(files), key=files.index)
    if not files:
        sys.stdout.write("none of the rules has changed: no mutants\n")
        return 0
    ends_at = time.monotonic() + options.seconds if options.seconds else None
    # Only developers have mutmut; tests of this file run without it.
    from .python_mutants import try_room  # noqa: PLC0415

    scores = Scores()
    slow = [f"--deselect={TESTS}/{test}" for test in SLOW]
    scripts = [file for file in files if file in SCRIPTS]
    is_complete = all(_mutate_script(script, ends_at, scores) for script in scripts)
    modules = sorted(file for file in files if file not in SCRIPTS)
    for room, group in groupby(modules, key=lambda file: file.partition("/")[0]):
        is_complete = is_complete and try_room(
            room, list(group), [room_tests(room), *slow], ends_at, scores
        )
    if not is_complete:
        sys.stdout.write(f"stopped after {options.seconds:.0f} s\n")
    is_failed = scores.told(is_complete=is_complete)
    sys.stdout.write(f"the gate covers {share_of(ALL)} of the package\n")
    return is_failed


def room_tests(room: str) -> str:
    """Return the folder with the tests of a room, or the file with those of a module beside it."""
    return f"{TESTS}/test_{room}" if room.endswith(".py") else f"{TESTS}/{room}"


def _changed_since(commit: str) -> set[str]:
    command = ["git", "diff", "--name-only", "--relative=" + PACKAGE, commit, "--", PACKAGE]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def _mutate_script(script: str, ends_at: float | None, scores: Scores) -> bool:
    """Try the mutants of a script; return whether it was done before the time was over."""
    killed, alive, is_complete = lua.survivors(Path(script).name, ends_at)
    scores.kill(script, killed)
    for mutant in alive:
        scores.judge(script, f"- {mutant.removed}\n+ {mutant.added}")
    return is_complete


if __name__ == "__main__":
    sys.exit(main())
