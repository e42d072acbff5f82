"""Instructions, counted by callgrind: unlike times, they do not depend on the machine's load.

    python -m tools.benchmarks.instructions

counts them and writes the baseline, which no later count may exceed by more than 3 %. Do so after a
change that makes tasks cheaper, or one that is worth its price.
"""

from __future__ import annotations

import compileall
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import celery_redlock
from celery_redlock.testing import start_servers

from .counted import FEW, MANY
from .names import PLAIN
from .page import Row

BASELINE = Path(__file__).with_name("baseline.json")
_TOLERATED = 1.03
Ratios = Mapping[str, Mapping[str, float]]
_TOTALS = re.compile(r"^totals: (\d+)$", re.MULTILINE)


def count(urls: Sequence[str], folder: Path) -> list[Row]:
    """Count the instructions of a task that does nothing, by variant.

    Args:
        urls: Nodes.
        folder: For callgrind's files.

    Raises:
        subprocess.CalledProcessError: A batch has failed.
    """
    settings = {
        "redlock_nodes": list(urls),
        "redlock_restart_guard": False,
        # Callgrind slows this process down fifty times.
        "redlock_node_timeout": 20.0,
    }
    # In a fresh clone the first batch would be counted with what compiling takes.
    compileall.compile_dir(Path(celery_redlock.__file__).parent, quiet=1)
    ran = subprocess.run(
        ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/%p",
         sys.executable, "-m", "tools.benchmarks.counted", json.dumps(settings)],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )  # fmt: skip

    def per_task(few: int, many: int) -> float:
        few_and_many = [total((folder / str(pid)).read_text()) for pid in (few, many)]
        return (few_and_many[1] - few_and_many[0]) / (MANY - FEW)

    return [
        {"name": name, "to_publish": per_task(*pids[:2]), "to_execute": per_task(*pids[2:])}
        for name, pids in json.loads(ran.stdout).items()
    ]


def total(profile: str) -> int:
    """Return the number of instructions that one of callgrind's files tells.

    Raises:
        LookupError: It tells none, as that of a process that was killed.
    """
    found = _TOTALS.search(profile)
    if not found:
        raise LookupError("callgrind has counted nothing")
    return int(found[1])


def interpreter() -> str:
    """Return what the counts depend on most: the interpreter's version and the processor."""
    return f"Python {'.'.join(platform.python_version_tuple()[:2])}, {platform.machine()}"


def over_plain(rows: Sequence[Row]) -> Ratios:
    """Return the instructions of each variant as multiples of those without a lock."""
    [plain] = [row for row in rows if row["name"] == PLAIN]
    return {
        row["name"]: {
            column: round(row[column] / plain[column], 3) for column in ("to_publish", "to_execute")
        }
        for row in rows
        if row is not plain
    }


def regressions(counted: Ratios, baseline: Ratios) -> list[str]:
    """Return, in words, which counts exceed the baseline by more than what is tolerated."""
    return [
        f"{name}, {column}: {counted[name][column]} times a task without a lock, "
        f"{of_column} by the baseline"
        for name, of_variant in baseline.items()
        for column, of_column in of_variant.items()
        if counted[name][column] > of_column * _TOLERATED
    ]


def main() -> None:
    """Count, and write the baseline of this interpreter."""
    with start_servers(5) as five, tempfile.TemporaryDirectory() as folder:
        counted = over_plain(count(five.urls, Path(folder)))
    baselines = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    baselines[interpreter()] = counted
    BASELINE.write_text(json.dumps(baselines, indent=1) + "\n")


if __name__ == "__main__":
    main()
