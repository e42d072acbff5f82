"""Raising LeaseLost inside a running body, from outside, and never inside anything else.

One way for each kind of pool. What sits in C code can't be interrupted: that is what the fencing
token is for.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from .redlock import native
from .redlock.errors import LeaseLost

logger = logging.getLogger(__name__)
SIGNAL = getattr(signal, "SIGUSR2", None)
_is_installed = False


class Interrupt(Protocol):
    """A way to a body that is running."""

    def strike(self) -> None:
        """Have LeaseLost raised in the body, as soon as it can be.

        Called from another thread; where bodies are greenlets, from one of theirs.
        """

    def disarm(self) -> None:
        """From now on nothing is raised any more. Called where the body ran."""


def listen(struck: Callable[[], bool]) -> None:
    """Install the signal handler through which a process's main thread is interrupted.

    Args:
        struck: Called in the main thread; tells whether the signal was meant for what runs there,
            and may raise.
    """
    global _is_installed  # noqa: PLW0603  # a signal handler belongs to the process
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(SIGNAL)

    def handle(signum: int, frame: FrameType | None) -> None:
        if not struck() and callable(previous):
            previous(signum, frame)

    signal.signal(SIGNAL, handle)
    _is_installed = True


def here() -> Interrupt | None:
    """Return the way to the code that is calling, or None where there is none."""
    if native.is_green():
        return _InGevent() if "gevent.monkey" in sys.modules else _InEventlet()
    if threading.current_thread() is threading.main_thread():
        return _InMainThread() if _is_installed else None
    return _InThread()


class _InMainThread:
    """By a signal: it ends a blocking call. The handler finds out whose loss it is."""

    def strike(self) -> None:
        if SIGNAL is not None:
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)

    def disarm(self) -> None:
        pass


class _InThread:
    """By an exception that the interpreter raises in the thread, at its next bytecode."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._lock = threading.Lock()
        self._is_armed = True

    def strike(self) -> None:
        with self._lock:
            if self._is_armed:
                self._set(ctypes.py_object(LeaseLost))

    def disarm(self) -> None:
        with self._lock:
            self._is_armed = False
            # Takes back one that was set and not raised yet: the next task runs in this thread.
            self._set(None)

    def _set(self, exception: Any) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), exception)


class _InGevent:
    """By throwing into the greenlet from its hub, where it can't be running."""

    def __init__(self) -> None:
        import gevent  # noqa: PLC0415  # only where it is in use

        self._greenlet: Any = gevent.getcurrent()
        self._loop: Any = gevent.get_hub().loop
        self._is_armed = True

    def strike(self) -> None:
        self._loop.run_callback(self._throw)

    def _throw(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._greenlet.throw(LeaseLost)

    def disarm(self) -> None:
        self._is_armed = False


class _InEventlet:
    """By throwing into the greenlet from its hub, where it can't be running."""

    def __init__(self) -> None:
        from eventlet import hubs  # noqa: PLC0415  # only where it is in use
        from eventlet.greenthread import getcurrent  # noqa: PLC0415

        self._greenlet: Any = getcurrent()
        self._hub: Any = hubs.get_hub()
        self._is_armed = True

    def strike(self) -> None:
        self._hub.schedule_call_global(0, self._throw)

    def _throw(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._greenlet.throw(LeaseLost)

    def disarm(self) -> None:
        self._is_armed = False
