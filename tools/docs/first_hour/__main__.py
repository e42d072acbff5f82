"""Walk a stranger's first hour from the wheel: `python -m tools.docs.first_hour [--write] [WHEEL]`.

Without WHEEL it is built. `--write` records the walk for the documentation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.root import ROOT
from tools.docs.first_hour.page import recorded_walk, write
from tools.docs.first_hour.shell import default_interrupts
from tools.docs.first_hour.walk import walk


def main() -> None:
    """Walk, and print how long each step took."""
    parser = argparse.ArgumentParser(prog="tools.docs.first_hour")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("wheel", nargs="?", type=Path)
    given = parser.parse_args()
    default_interrupts()
    with tempfile.TemporaryDirectory(prefix="celery-redlock-first-hour-") as name:
        folder = Path(name)
        steps = walk(given.wheel or _build(folder / "wheel"), folder)
    for step in steps:
        sys.stdout.write(f"{step.seconds:6.1f} s  {step.name}: {step.saw}\n")
    if given.write:
        write(recorded_walk(steps))


def _build(folder: Path) -> Path:
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *command], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


if __name__ == "__main__":
    main()
