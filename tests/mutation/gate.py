"""The mutation gate: `python -m tests.mutation.gate [--since COMMIT] [--seconds N] [FILE …]`.

mutmut changes the lock's rules, one place at a time, in a copy of the source tree in
build/mutation, and runs the fast tests that reach the change. The Lua scripts, which it does not
know, are changed by `lua`. A mutant that survives is a rule that no fast test protects, unless
`equivalent.json` says why it changes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.root import ROOT

from . import lua
from .scores import Scores

LOCK = "celery_redlock/redlock"
MODULES = (
    "protocol/quorum.py", "protocol/replies.py", "protocol/scripts.py", "protocol/run_notes.py",
    "lease.py", "extension.py", "release.py", "acquisition.py",
    "keeper.py", "keeper_thread.py", "transport/restart_guard.py",
)  # fmt: skip
SCRIPTS = tuple(f"protocol/lua/{name}.lua" for name in ("grant", "confirm", "extend", "release"))
_FOLDER = ROOT / "build" / "mutation"
_MUTMUT = (sys.executable, "-m", "mutmut")
TESTS = "tests/unit/redlock"
SLOW = tuple(
    f"transport/test_{name}.py"
    for name in ("channel", "connection", "connection_set", "direct", "poller", "subscriptions")
)
"""Tests of how bytes travel: they take seconds, and none of the mutated files is about that."""
_CONFIGURATION = """
[tool.mutmut]
source_paths = ["celery_redlock"]
only_mutate = {files}
# Types that only a checker reads; what runs at the import of a module, before there is a mutant.
do_not_mutate_patterns = ["\\\\bcast\\\\(", "files\\\\(__package__\\\\)", "sha1\\\\("]
also_copy = ["tests", "pyproject.toml"]
# Threads of the lock outlive the test that started them.
process_isolation = "forkserver"
# A mutant that hangs has been noticed.
timeout_constant = 10
timeout_multiplier = 3
pytest_add_cli_args = [
    "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.mutation.quickest_first",
    "--timeout", "10"
]
pytest_add_cli_args_test_selection = {tests}
"""


def main() -> int:
    """Run the mutants and print those that survive; return 1 if one has no reason to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help=f"files of {LOCK} to mutate; all by default")
    parser.add_argument("--since", help="mutate only the files that changed since this commit")
    parser.add_argument("--seconds", type=float, help="stop after so long, and record nothing")
    options = parser.parse_args()
    files = options.files or [*MODULES, *SCRIPTS]
    if options.since:
        files = sorted(_changed_since(options.since).intersection(files), key=files.index)
    if not files:
        sys.stdout.write("none of the lock's rules has changed: no mutants\n")
        return 0
    scores = Scores()
    for script in SCRIPTS:
        if script in files:
            count, alive = lua.survivors(Path(script).name)
            scores.kill(script, count - len(alive))
            for mutant in alive:
                scores.judge(script, f"- {mutant.removed}\n+ {mutant.added}")
    is_complete = True
    if modules := [file for file in files if file not in SCRIPTS]:
        _copy(modules)
        is_complete = _run(options.seconds)
        _judge(scores)
    return scores.told(is_complete=is_complete)


def _changed_since(commit: str) -> set[str]:
    command = ["git", "diff", "--name-only", "--relative=" + LOCK, commit, "--", LOCK]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def _copy(files: list[str]) -> None:
    """Copy the source tree, with a configuration of mutmut."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("celery_redlock", "tests"):
        shutil.copytree(ROOT / name, _FOLDER / name, ignore=without)
    slow = [f"--ignore={TESTS}/{test}" for test in SLOW]
    configuration = _CONFIGURATION.format(
        files=json.dumps([f"{LOCK}/{file}" for file in files]), tests=json.dumps([TESTS, *slow])
    )
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (_FOLDER / "pyproject.toml").write_text(project + configuration, encoding="utf-8")


def _run(seconds: float | None) -> bool:
    """Run mutmut; return whether it was done before the time was over."""
    command = [*_MUTMUT, "run", "--max-children", "1"]
    try:
        subprocess.run(command, cwd=_FOLDER, timeout=seconds, check=True, stdout=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"stopped after {seconds:.0f} s\n")
        return False
    return True


def _asked(*arguments: str) -> str:
    command = [*_MUTMUT, *arguments]
    return subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, check=True).stdout


def _judge(scores: Scores) -> None:
    verdicts = re.findall(r"^\s+(\S+): (.+)$", _asked("results", "--all", "true"), re.MULTILINE)
    for mutant, verdict in verdicts:
        if verdict in ("killed", "timeout"):
            scores.kill(_file_of(mutant))
        elif verdict != "not checked":
            scores.judge(_file_of(mutant), _change(mutant))


def _file_of(mutant: str) -> str:
    """Return the file of a mutant: of `celery_redlock.redlock.lease.x_task_of__mutmut_1`."""
    module = mutant.rpartition(".")[0].removeprefix(LOCK.replace("/", ".") + ".")
    return module.replace(".", "/") + ".py"


def _change(mutant: str) -> str:
    """Return the lines that a mutant removes and adds."""
    lines = _asked("show", mutant).splitlines()
    return "\n".join(
        f"{line[0]} {line[1:].strip()}"
        for line in lines
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))
    )


if __name__ == "__main__":
    sys.exit(main())
