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
from collections import Counter
from pathlib import Path

from tests.support.evidence import record
from tests.support.root import ROOT

from . import lua

LOCK = "celery_redlock/redlock"
GATED = ("protocol/quorum.py",)
"""Files of which each survivor has been killed or explained."""
WATCHED = (
    "extension.py", "release.py", "lease.py", "acquisition.py", "keeper.py", "protocol/scripts.py",
)  # fmt: skip
"""Files that are mutated as well; their survivors are shown, and fail nothing yet."""
SCRIPTS = tuple(f"protocol/lua/{name}.lua" for name in ("grant", "confirm", "extend", "release"))
"""Each of their survivors is shown, too."""
_FOLDER = ROOT / "build" / "mutation"
_EQUIVALENT = Path(__file__).parent / "equivalent.json"
_RULES = "protocol"
"""Folder of pure functions; of its tests, which are the fastest."""
_TESTS = (
    "test_acquisition.py", "test_attempts.py", "test_extension.py", "test_release.py",
    "test_keeper.py", "test_keeper_thread.py", "test_lease.py", "test_unsettled.py",
    "test_rounds.py", "test_hold.py", "test_lock.py", "test_interrupts.py", "test_refusals.py",
    "test_errors.py",
)  # fmt: skip
_CONFIGURATION = """
[tool.mutmut]
source_paths = ["celery_redlock"]
only_mutate = {files}
also_copy = ["tests", "pyproject.toml"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:xdist"]
pytest_add_cli_args_test_selection = {tests}
"""


def main() -> int:
    """Run the mutants, print those that survive; return 1 if one in a gated file is unexplained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help=f"files of {LOCK} to mutate; all by default")
    parser.add_argument("--since", help="mutate only the files that changed since this commit")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    options = parser.parse_args()
    files = options.files or [*GATED, *WATCHED, *SCRIPTS]
    if options.since:
        files = sorted(_changed_since(options.since).intersection(files), key=files.index)
    if not files:
        sys.stdout.write("none of the lock's rules has changed: no mutants\n")
        return 0
    scores = Scores()
    for script in SCRIPTS:
        if script in files:
            count, alive = lua.survivors(Path(script).name)
            scores.add(script, "killed", count - len(alive))
            for mutant in alive:
                scores.judge(script, f"- {mutant.removed}\n+ {mutant.added}")
    if modules := [file for file in files if file not in SCRIPTS]:
        _copy(modules)
        _run(modules, options.seconds)
        _judge(scores)
    return scores.told()


def _changed_since(commit: str) -> set[str]:
    command = ["git", "diff", "--name-only", "--relative=" + LOCK, commit, "--", LOCK]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def _copy(files: list[str]) -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("celery_redlock", "tests"):
        shutil.copytree(ROOT / name, _FOLDER / name, ignore=without)
    tests = [_RULES] if all(file.startswith(_RULES) for file in files) else [_RULES, *_TESTS]
    configuration = _CONFIGURATION.format(
        files=json.dumps([f"{LOCK}/{file}" for file in files]),
        tests=json.dumps([f"tests/unit/redlock/{test}" for test in tests]),
    )
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (_FOLDER / "pyproject.toml").write_text(project + configuration, encoding="utf-8")


def _run(files: list[str], seconds: float | None) -> None:
    """Run mutmut on each file in turn, until the time is over."""
    patterns = [f"{LOCK}/{file}".removesuffix(".py").replace("/", ".") + ".*" for file in files]
    command = [*_MUTMUT, "run", "--max-children", "1", *patterns]
    try:
        subprocess.run(command, cwd=_FOLDER, timeout=seconds, check=True, stdout=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        sys.stdout.write(f"stopped after {seconds:.0f} s\n")


_MUTMUT = (sys.executable, "-m", "mutmut")


def _asked(*arguments: str) -> str:
    command = [*_MUTMUT, *arguments]
    return subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, check=True).stdout


class Scores:
    """How many mutants of each file were killed, live, or change nothing."""

    def __init__(self) -> None:
        self._by_file: dict[str, Counter[str]] = {}
        self._explained: dict[str, str] = {}
        self._has_failed = False

    def add(self, file: str, verdict: str, count: int = 1) -> None:
        """Count mutants of a file: "killed", "survived" or "equivalent"."""
        self._by_file.setdefault(file, Counter(killed=0, survived=0, equivalent=0))[verdict] += (
            count
        )

    def judge(self, file: str, change: str) -> None:
        """Count a mutant that lives; print it unless it is known to change nothing."""
        if reason := known_equivalents().get(change):
            self._explained[change] = reason
            self.add(file, "equivalent")
            return
        self.add(file, "survived")
        self._has_failed |= file in GATED
        sys.stdout.write(f"survived: {file}\n{change}\n\n")

    def told(self) -> int:
        """Record and print the figures; return 1 if one in a gated file is unexplained."""
        rows = [{"file": file, **counts} for file, counts in sorted(self._by_file.items())]
        total: Counter[str] = sum(self._by_file.values(), Counter())
        record("mutants", by_file=rows, **{name: total[name] for name in ("killed", "survived")},
               equivalent=self._explained)  # fmt: skip
        for row in rows:
            sys.stdout.write(f"{row}\n")
        return int(self._has_failed)


def _judge(scores: Scores) -> None:
    verdicts = re.findall(r"^\s+(\S+): (.+)$", _asked("results", "--all", "true"), re.MULTILINE)
    for mutant, verdict in verdicts:
        if verdict in ("killed", "timeout"):
            scores.add(_file_of(mutant), "killed")
        elif verdict in ("survived", "no tests"):
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


def known_equivalents() -> dict[str, str]:
    """Return the reason why a change changes nothing, by its lines."""
    known = json.loads(_EQUIVALENT.read_text(encoding="utf-8"))
    return {"\n".join(one["change"]): one["reason"] for one in known}


if __name__ == "__main__":
    sys.exit(main())
