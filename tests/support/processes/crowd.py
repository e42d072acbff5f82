"""Processes beside the workers, as web servers that publish: all call one function of the app.

    python -m tests.support.processes.crowd MODULE FUNCTION PROCESSES ARGUMENT...

They are forks of one that has imported the app's module: to import it takes longer than a storm.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys

from tests.support.root import ROOT

from .inside import FOLDER_VARIABLE
from .project import Project
from .start import kill_group


def crowd(
    project: Project, function: str, *arguments: object, processes: int, within: float
) -> None:
    """Have `processes` call ``function(number, *arguments)``, each with its own number; wait.

    Args:
        project: Its app's module has the function.
        function: Its name; it is given the arguments as text.
        arguments: The same for all.
        processes: How many.
        within: Seconds after which they are killed.

    Raises:
        subprocess.TimeoutExpired: They were.
        AssertionError: It has failed in one of them.
    """
    launcher = subprocess.Popen(
        [sys.executable, "-m", __name__, project.module, function, str(processes)]
        + [str(argument) for argument in arguments],
        cwd=ROOT,
        env=os.environ | {FOLDER_VARIABLE: str(project.folder)},
        start_new_session=True,
    )
    try:
        assert launcher.wait(within) == 0, f"{function} has failed, as shown above"
    finally:
        kill_group(launcher)


def main(module: str, function: str, processes: int, arguments: list[str]) -> None:
    """Fork, and return when all have ended."""
    call = getattr(importlib.import_module(module), function)
    fork = multiprocessing.get_context("fork").Process
    crowd = [fork(target=call, args=(number, *arguments)) for number in range(processes)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join()
    if failed := [process for process in crowd if process.exitcode]:
        raise SystemExit(f"failed: {failed}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
