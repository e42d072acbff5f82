"""What a call leaves to the cycle collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import celery_redlock

_PACKAGE = str(Path(celery_redlock.__file__).parent)


def frames_left_by(call: Callable[[], object]) -> list[str]:
    """Return the functions of the package whose frames only the cycle collector frees.

    Until then all that they and their callers refer to lives: arguments, results. Before Celery
    5.7, a result that is collected ends the wait for another one of the same task.

    Args:
        call: What is called; its error is dropped.
    """
    gc.collect()
    gc.disable()
    try:
        with suppress(Exception):
            call()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        codes = [one.f_code for one in gc.garbage if isinstance(one, FrameType)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return [code.co_name for code in codes if code.co_filename.startswith(_PACKAGE)]
