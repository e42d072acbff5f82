"""Instructions, counted by callgrind: unlike times, they do not depend on the machine's load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .counted import FEW, MANY
from .page import Row

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
    ran = subprocess.run(
        ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/%p",
         sys.executable, "-m", "tests.benchmarks.counted", json.dumps(settings)],
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
