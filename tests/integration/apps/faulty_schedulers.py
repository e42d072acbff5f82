"""Schedulers to build on whose next publication goes wrong when the test says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery.beat import PersistentScheduler

from tests.support.processes.inside import FOLDER_VARIABLE


class Faulty(PersistentScheduler):
    """One whose `apply_async` does what the test wants of it, once: `fault` is a file's name."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_told("die-before"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._is_told("fail"):
            raise ValueError("told to fail")
        result = super().apply_async(entry, *args, **kwargs)
        if self._is_told("die-after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    @staticmethod
    def _is_told(fault: str) -> bool:
        try:
            (Path(os.environ[FOLDER_VARIABLE]) / fault).unlink()
        except FileNotFoundError:
            return False
        return True
