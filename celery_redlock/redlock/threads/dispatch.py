"""Start real threads beside greenlets, and call functions back in the thread of the greenlets.

There, locks, queues and events belong to the greenlets, logging's included. A real thread that
finds one of them locked waits for ever, because unlocking it wakes only greenlets. So code of
others (logs, observers, signals) runs in the origin thread: the one that started the real thread.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from .native import is_green, original
from .wakeup import Wakeup


class _Origin(Protocol):
    def call(self, function: Callable[[], Any]) -> None:
        """Have a greenlet there call `function`."""

    def close(self) -> None:
        """Release the resources that calls need."""


_BEGINS_WITHIN_S = 1.0
_TRIES = 3
_origins: dict[int, _Origin] = {}
"""Origin of each real thread that was started among greenlets."""
_own: set[int] = set()
"""Threads, and greenlets, that run this package's work for all users of the process."""


def run_in_origin_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call `function` in the origin thread: at once, unless this is a thread beside greenlets."""
    origin = _origins.get(original("_thread", "get_ident")()) if _origins else None
    if origin:
        origin.call(partial(run_as_own, partial(function, *args, **kwargs)))
    else:
        function(*args, **kwargs)


def run_as_own(run: Callable[[], object]) -> None:
    """Run a function on the calling thread, or greenlet, as one of this package."""
    try:
        _own.add(_ident())
    finally:  # also if memory runs out
        try:
            run()
        finally:
            # The next thread, or greenlet, may get its number.
            _own.discard(_ident())


def is_own_thread() -> bool:
    """Return whether the calling thread, or greenlet, is one of this package."""
    return _ident() in _own


def after_fork() -> None:
    """Forget the parent's threads, in a forked child: its new ones may get their numbers."""
    if not is_green():  # greenlets go on in the child
        _own.intersection_update({_ident()})
        _origins.clear()


def _ident() -> int:
    """Return the number of the calling thread; among greenlets, that of the greenlet."""
    ident: int = sys.modules["_thread"].get_ident()
    return ident


def start_thread(run: Callable[[], None], name: str) -> None:
    """Run a function on a real daemon thread, whose origin is the calling thread.

    Raises:
        RuntimeError: No thread can be started now.
    """
    run = partial(run_as_own, run)
    if not is_green():
        _start(run, name)
        return
    origin = _InGevent() if "gevent.monkey" in sys.modules else _InEventlet()
    _start_and_wait(lambda: _run_away(run, origin))


def start_beside(run: Callable[[], None], name: str) -> None:
    """Run a function on another thread; among greenlets, in another greenlet of this thread.

    Raises:
        RuntimeError: No thread can be started now.
    """
    run = partial(run_as_own, run)
    if is_green():
        # A Thread uses locks, which a real thread beside greenlets must not.
        sys.modules["_thread"].start_new_thread(run, ())
    else:
        _start(run, name)


def _start(run: Callable[[], None], name: str) -> None:
    def named() -> None:
        try:
            threading.current_thread().name = name
        finally:  # also if memory runs out: it counts as begun
            try:
                run()
            finally:
                _forget_dummy()

    _start_and_wait(named)


def _forget_dummy() -> None:
    """Have `threading` list the calling thread no more, if it has not started it.

    Up to Python 3.12 it would for ever, and the next thread with the same number by the same name.
    """
    listed: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]  # noqa: SLF001
    if isinstance(listed.get(_ident()), threading._DummyThread):  # noqa: SLF001
        listed.pop(_ident(), None)


class _Beginning:
    """End of the wait for a thread to begin: it begins, or dies before that."""

    __slots__ = ("_awaited",)

    def __init__(self, awaited: Any) -> None:
        self._awaited = awaited

    def tell(self) -> None:
        """End the wait; may be repeated."""
        # It is an AttributeError if an interrupt has struck the line that sets the attribute.
        with suppress(RuntimeError, AttributeError):
            self._awaited.release()

    __del__ = tell


def _start_and_wait(run: Callable[[], None]) -> None:
    """Call `run` on a new thread, and return as soon as that begins.

    Up to Python 3.11 an exception that is raised in this thread from outside, as time limits do
    (PyThreadState_SetAsyncExc), may kill the new thread instead: until that one runs, it goes by
    the number of the thread that starts it. Then another one is started; the exception is lost.

    Raises:
        RuntimeError: No thread can be started now.
    """
    # A Thread's start would wait for ever for one that was killed, and an interrupt inside
    # that wait turns into a RuntimeError.
    start, new_lock = original("_thread", "start_new_thread"), original("_thread", "allocate_lock")
    turn, is_awaited = [run], True
    for _ in range(_TRIES):
        awaited = new_lock()
        awaited.acquire()
        start(_begin, (turn, _Beginning(awaited)))
        # While the interpreter exits, no thread begins any more, nor reports its end.
        is_awaited = not awaited.acquire(timeout=_BEGINS_WITHIN_S)
        if not turn:
            return
    # The machine may just be slow: the first thread that begins then calls `run`.
    if not is_awaited and _take(turn):
        raise RuntimeError("threads are started, but end before they begin")


def _begin(turn: list[Callable[[], None]], beginning: _Beginning) -> None:
    run = _take(turn)
    try:
        beginning.tell()
    finally:
        # Nobody else calls it, now that it is taken: also if memory runs out.
        if run:
            run()


def _take(turn: list[Callable[[], None]]) -> Callable[[], None] | None:
    """Return the function to call; None if another thread has taken it."""
    try:
        return turn.pop()
    except IndexError:
        return None


def _run_away(run: Callable[[], None], origin: _Origin) -> None:
    ident = original("_thread", "get_ident")()
    _origins[ident] = origin
    try:
        run()
    finally:
        del _origins[ident]
        origin.close()


class _InGevent:
    def __init__(self) -> None:
        import gevent  # noqa: PLC0415  # only where it is in use

        self._loop: Any = gevent.get_hub().loop
        self._spawn = gevent.spawn

    def call(self, function: Callable[[], Any]) -> None:
        self._loop.run_callback_threadsafe(self._spawn, function)

    def close(self) -> None:
        pass


class _InEventlet:
    """Calls into eventlet, whose hub only a descriptor can wake."""

    def __init__(self) -> None:
        import eventlet  # noqa: PLC0415  # only where it is in use

        self._spawn = eventlet.spawn_n
        self._wait: Callable[..., Any] = eventlet.hubs.trampoline
        self._calls: deque[Callable[[], Any]] = deque()
        self._wakeup = Wakeup()
        self._is_closed = False
        self._spawn(self._listen)

    def call(self, function: Callable[[], Any]) -> None:
        self._calls.append(function)
        self._wakeup.wake()

    def close(self) -> None:
        self._is_closed = True
        self._wakeup.wake()

    def _listen(self) -> None:
        while not self._is_closed:
            self._wait(self._wakeup.fd, read=True)
            self._wakeup.clear()
            while self._calls:
                self._spawn(self._calls.popleft())
        self._wakeup.close()
