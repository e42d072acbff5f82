"""Interrupts at every point of a call: what a signal handler may do that raises."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
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
        self._entered_by: FrameType | None = None
        self.where = ""

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        self._entered_by = sys._getframe(1)
        sys.settrace(self._begin)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        self._entered_by = None

    def _begin(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._is_in_folder(frame) or self._is_inside_a_finalizer(frame):
            return None
        frame.f_trace_opcodes = self._event == "opcode"
        # So begins the end of a generator that is left unfinished, too: no signal is handled there.
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._count(frame)
        return self._step

    def _is_in_folder(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self._folder)

    def _is_inside_a_finalizer(self, frame: FrameType | None) -> bool:
        """Return whether a finalizer, or a function that one calls, runs in this frame.

        The interpreter only prints what a finalizer raises, and the garbage collection of whatever
        an earlier test has left may run one at any point.
        """
        finalizers = _finalizers(self._folder)
        while frame and frame is not self._entered_by:
            if frame.f_code in finalizers:
                return True
            frame = frame.f_back
        return False

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


@functools.cache
def _finalizers(folder: str) -> frozenset[CodeType]:
    """Return the code of each ``__del__`` in a folder, which may have another name as well.

    By class, not by the object that a frame has: asking a frame for its variables makes it keep
    what they were, and so an exception that it handled, in a cycle.
    """
    modules = [
        one
        for one in sys.modules.values()
        if (getattr(one, "__file__", "") or "").startswith(folder)
    ]
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    finalizers = [vars(one)["__del__"] for one in classes if "__del__" in vars(one)]
    return frozenset(one.__code__ for one in finalizers if inspect.isfunction(one))


def strikers(
    strike: Callable[[], object] | None = None, *, folder: str = _FOLDER
) -> Iterator[Striker]:
    """Yield strikers, each for one line later, until the caller's `with` comes to its end unstruck.

    Args:
        strike: As for `Striker`.
        folder: As for `Striker`.
    """
    at = 1
    while True:
        yield (striker := Striker(at, strike=strike, folder=folder))
        if not striker.where:
            assert at > 5, "the lines that were meant are not traced"
            return
        at += 1


def _forget_frames(error: BaseException | None) -> None:
    """Let go of the frames of an error, and of those that were being handled as it was raised.

    They hold on to what the call had. Tracing makes a frame keep its variables as they were at its
    last point, and so the error that it was handling, in a cycle.
    """
    while error:
        error.__traceback__ = None
        error.__context__, error = None, error.__context__


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
            raised = came
            _forget_frames(came)
        if not striker.where:
            if raised is not None:
                raise raised
            assert at > 1, "no point was struck"
            return
        yield at, raised, striker.where
        at += step
