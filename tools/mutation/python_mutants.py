"""Mutants of Python files, which mutmut makes in a copy of the source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.file_mutation import mutate_file_contents

from tests.support.root import ROOT

from .forked_mutants import OF_CONSTANT, PLAN, Plan, Verdict
from .operators import add_operators, constants
from .scores import PACKAGE, Scores

_COPIES = ROOT / "build" / "mutation"


def try_room(
    room: str, files: list[str], tests: list[str], ends_at: float | None, scores: Scores
) -> bool:
    """Try the mutants of some files of a room on the tests of that room.

    Args:
        room: Folder of the package.
        files: Files to mutate, below the package.
        tests: Those of the room, as pytest's arguments.
        ends_at: Time to stop at, seconds on the monotonic clock; None: when all were tried.
        scores: Where the verdicts are counted.

    Returns:
        Whether every mutant was tried.
    """
    folder = _COPIES / room
    shutil.rmtree(folder, ignore_errors=True)
    without = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in (PACKAGE, "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=without)
    shutil.copy(ROOT / "pyproject.toml", folder)
    files_of = {mutant: file for file in files for mutant in _mutate(folder, file)}
    verdicts = _verdicts(folder, tests, Plan([*files_of], str(folder / "verdicts"), ends_at))
    for verdict in verdicts:
        file = files_of[verdict.mutant]
        if verdict.is_killed:
            scores.kill(file)
        else:
            scores.judge(file, _change(folder, file, verdict.mutant))
    return len(verdicts) == len(files_of)


def _mutate(folder: Path, file: str) -> Iterator[str]:
    """Put all mutants of a file into its copy, of which one at a time can be chosen."""
    add_operators()
    path = folder / PACKAGE / file
    text = path.read_text(encoding="utf-8")
    mutated = mutate_file_contents(str(path), text)
    path.write_text(mutated.code, encoding="utf-8")
    module = f"{PACKAGE}/{file}".removesuffix(".py").replace("/", ".")
    for name in mutated.mutant_names:
        yield f"{module}.{name}"
    for name, _ in constants(text):
        yield f"{module}{OF_CONSTANT}{name}"


def _verdicts(folder: Path, tests: list[str], plan: Plan) -> list[Verdict]:
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tools.mutation.forked_mutants",
        "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "120", "--tb=native", *tests,
    ]  # fmt: skip
    written = folder / "plan"
    written.write_text(json.dumps(plan), encoding="utf-8")
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | {PLAN: str(written)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    into = Path(plan.into)
    if ran.returncode not in (0, 5) or not into.exists():
        sys.stdout.write(ran.stdout[-5000:])
        raise RuntimeError(f"the mutants of {folder.name} can't be tried")
    lines = into.read_text(encoding="utf-8").splitlines()
    return [Verdict(*json.loads(line)) for line in lines]


def _change(folder: Path, file: str, mutant: str) -> str:
    """Return the lines that a mutant removes and adds."""
    mutated = (folder / PACKAGE / file).read_text(encoding="utf-8")
    _, _, constant = mutant.partition(OF_CONSTANT)
    if constant:
        value = dict(constants(mutated))[constant]
        return f"- {constant} = {value}\n+ {constant} = {value} * 10"
    lines = get_diff_for_mutant(mutant, mutated, file).splitlines()
    return "\n".join(
        f"{line[0]} {line[1:].strip()}"
        for line in lines
        if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))
    )
