"""A folder for each library, with what this environment lacks of it, for ``PYTHONPATH``.

So libraries that exclude each other, and several versions of one, can be tried in one run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.requirements import unmet
from tests.support.root import ROOT

from .libraries import Library

FOLDER = ROOT / "build" / "compat"
_SECONDS = 240


def installed(library: Library) -> dict[str, str]:
    """Install `library` in a folder of its own, once; return the environment that finds it.

    Tests in other processes that want the same library wait until it is installed. Ends the test
    if no package index has it. Celery itself is there.
    """
    if not library.requirements:
        return {}
    layer = FOLDER / f"{library}-py{sys.version_info[0]}.{sys.version_info[1]}"
    mark = layer / "installed"
    wanted = " ".join(library.requirements)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with layer.with_name(f"{layer.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != wanted:
            shutil.rmtree(layer, ignore_errors=True)
            _install(layer, library.requirements)
            mark.write_text(wanted)
    found = [str(_packages(layer)), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def _install(layer: Path, requirements: list[str]) -> None:
    """Make an environment on top of this one, in which `pip` adds only what is missing."""
    python = layer / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", layer], check=True)
    below = _packages(layer) / "below.pth"
    below.write_text(sysconfig.get_path("purelib") + "\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", *requirements],
        capture_output=True, text=True, timeout=_SECONDS, check=False,
    )  # fmt: skip
    below.unlink()  # on PYTHONPATH the files of a folder are not read
    if ran.returncode:
        shutil.rmtree(layer)
        last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
        unmet(f"{' '.join(requirements)} can't be installed: {last}", "compat")


def _packages(layer: Path) -> Path:
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return layer / "lib" / name / "site-packages"
