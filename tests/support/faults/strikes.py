"""Interrupts at every point of a call: what a signal handler may do that raises."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import celery_redlock.redlock

_FOLDER = str(Path(celery_redlock.redlock.__file__).parent)


class Struck(BaseException):
    """What the handler raises; no code of the lock's knows it."""


class Striker:
    """Strikes at the `at`-th point that this thread comes to inside some code; by `with`.

    Args:
        at: 1 for the first.
        opcodes: Whether each bytecode is a point, or each line. The beginning of a function is one
            in any case, before its first line: there the interpreter looks for signals.
        strike: What happens there, as in a signal handler; None: `error` is raised.
        error: Which.
        folder: Which code: the lock's, or all in another folder.

    Attributes:
        where: The point, once it was struck; '' before.
    """

    def __init__(
        self,
        at: int,
        *,
        opcodes: bool = False,
        strike: Callable[[], object] | None = None,
        error: type[BaseException] = Struck,
        folder: str = _FOLDER,
    ) -> None:
        self._left = at
        self._folder = folder
        self._event = "opcode" if opcodes else "line"
        self._strike = strike or self._raise
        self._error = error
        self.where = ""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._begin)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _begin(self, frame: FrameType, event: str, arg: object) -> Any:
        # What a finalizer raises is only printed, by the interpreter itself.
        code = frame.f_code
        if code.co_name == "__del__" or not code.co_filename.startswith(self._folder):
            return None
        frame.f_trace_opcodes = self._event == "opcode"
        # So begins the end of a generator that is left unfinished, too: no signal is handled there.
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._count(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == self._event:
            self._count(frame)
        return self._step

    def _count(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            sys.settrace(None)
            code = frame.f_code
            self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}"
            self._strike()

    def _raise(self) -> None:
        raise self._error(self.where)


def strikes(
    call: Callable[[int], object],
    *,
    opcodes: bool = False,
    step: int = 1,
    error: type[BaseException] = Struck,
    folder: str = _FOLDER,
) -> Iterator[tuple[int, BaseException | None, str]]:
    """Make `call` again and again, each time struck one point later, until it comes to its end.

    Args:
        call: Given the number of the point.
        opcodes: As for `Striker`.
        step: Strike at every so many-th point only.
        error: What strikes.
        folder: As for `Striker`.

    Yields:
        The number of each point, what `call` raised, and where it was struck.
    """
    at = 1
    while True:
        striker = Striker(at, opcodes=opcodes, error=error, folder=folder)
        raised: BaseException | None = None
        try:
            with striker:
                call(at)
        except BaseException as came:  # noqa: BLE001 - whatever it is, it is judged
            # Without the frames, which hold on to what the call had.
            raised = came.with_traceback(None)
            raised.__context__ = None
        if not striker.where:
            if raised is not None:
                raise raised
            return
        yield at, raised, striker.where
        at += step
