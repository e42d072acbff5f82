"""`celery -A … redlock` as a user types it: in this process, or in one of its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from celery import Celery
from click.testing import CliRunner

from celery_redlock.cli import redlock

from .inside import FOLDER_VARIABLE
from .project import Project
from .ran import Ran
from .start import run


def run_with(app: Celery, *words: str) -> Ran:
    """Run `celery -A … redlock` for an app in this process."""
    result = CliRunner().invoke(
        redlock, words, obj=SimpleNamespace(app=app), catch_exceptions=False
    )
    return Ran(result.exit_code, result.output)


def celery_of(project: Project, *words: str) -> list[str]:
    """Return the command `celery -A <project> words…`."""
    return [sys.executable, "-m", "celery", "-A", project.module, *words]


def environment_of(project: Project) -> dict[str, str]:
    """Return what its environment has besides: where the project is."""
    return {FOLDER_VARIABLE: str(project.folder)}


def run_celery(project: Project, *words: str) -> Ran:
    """Run `celery -A <project> words…`; its output is what it wrote to stdout and stderr."""
    done = run(celery_of(project, *words), environment_of(project))
    return Ran(done.returncode, done.stdout + done.stderr)
