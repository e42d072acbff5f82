"""Interrupts that raise LeaseLost in a running body, and never in any other code.

There is one kind for each kind of pool. A body that is inside C code can't be interrupted: fencing
tokens protect resources from it.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, Protocol

from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.threads import native

SIGNAL: Any = getattr(signal, "SIGURG", None)
"""Ignored by a process without a handler, and not one of those whose handlers billiard replaces."""
_is_installed = False


class Interrupt(Protocol):
    """Interrupt of one running body."""

    def trigger(self, error: LeaseLost | None = None) -> None:
        """Raise LeaseLost in the body as soon as possible.

        Called from another thread; from another greenlet if bodies are greenlets.

        Args:
            error: What to raise, for a reason of its own; None: the lease of the body is lost.
        """

    def disarm(self) -> None:
        """Raise nothing from now on. Called in the thread or greenlet that ran the body."""


def install_signal_handler(on_signal: Callable[[], bool]) -> None:
    """Install the signal handler that interrupts the body in a process's main thread.

    Signals that are not about such a body go to the handler that was installed before.

    Args:
        on_signal: Called in the main thread; tells whether the signal was about a body there, and
            may raise LeaseLost.
    """
    global _is_installed  # noqa: PLW0603  # a signal handler belongs to the process
    if SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return
    previous = signal.getsignal(SIGNAL)

    def handle(signum: int, frame: FrameType | None) -> None:
        if not on_signal() and callable(previous):
            previous(signum, frame)

    signal.signal(SIGNAL, handle)
    _is_installed = True


def is_greenlet_exit(error: BaseException) -> bool:
    """Return whether an exception ends a greenlet that was killed."""
    greenlet: Any = sys.modules.get("greenlet")
    return greenlet is not None and isinstance(error, greenlet.GreenletExit)


def is_greenlet_timeout(error: BaseException) -> bool:
    """Return whether an exception is a time limit of gevent's pool, or another gevent timeout."""
    gevent: Any = sys.modules.get("gevent")
    return gevent is not None and isinstance(error, gevent.Timeout)


def new_interrupt() -> Interrupt | None:
    """Return an interrupt of the calling code; None in a main thread without signal handler."""
    if native.is_green():
        return _in_gevent() if "gevent.monkey" in sys.modules else _in_eventlet()
    if threading.current_thread() is threading.main_thread():
        return _InMainThread() if _is_installed else None
    return _InThread()


def signal_main_thread() -> None:
    """Signal the main thread, whose handler checks whether its body has lost the lease.

    May be called from any thread. The signal ends a blocking call of the main thread.
    """
    if _is_installed:
        main_thread: Any = threading.main_thread()
        signal.pthread_kill(main_thread.ident, SIGNAL)


class _InMainThread:
    """Interrupt of a main thread, by a signal. The handler finds out which lease is lost."""

    def trigger(self, error: LeaseLost | None = None) -> None:  # noqa: ARG002  # the handler's is
        signal_main_thread()

    def disarm(self) -> None:
        pass


class _InThread:
    """Interrupt of a thread, by an exception that the interpreter raises at its next bytecode."""

    def __init__(self) -> None:
        self._ident = threading.get_ident()
        self._lock = threading.Lock()
        self._is_armed = True
        self._exception: Any = None
        self._is_raised = False

    def trigger(self, error: LeaseLost | None = None) -> None:
        with self._lock:
            if self._is_armed and not self._is_raised:
                if self._exception is None:
                    kind = _reporting(self._note_raised, error or LeaseLost())
                    self._exception = ctypes.py_object(kind)
                self._raise_in_thread()

    def disarm(self) -> None:
        with self._lock:
            self._is_armed = False
        if self._exception and not self._is_raised:
            self._consume_pending()

    def _note_raised(self) -> None:
        """Take note that the exception was raised, on the thread in which it was."""
        if threading.get_ident() == self._ident:
            self._is_raised = True
        else:
            # Up to Python 3.11 a thread has the number of the thread that starts it until it runs.
            self.trigger()

    def _consume_pending(self) -> None:
        """Have a LeaseLost that is still pending raised here: the next task runs in this thread.

        Clearing it would not do: the interpreter would look for one at every step, endlessly if a
        debugger or coverage traces the thread.
        """
        try:
            while True:
                # Again and again: another thread may get the first ones, as above.
                self._raise_in_thread()
        except LeaseLost:
            pass

    def _raise_in_thread(self) -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), self._exception)


def _reporting(on_raised: Callable[[], None], error: LeaseLost) -> type[LeaseLost]:
    """Return a class of `error` that calls `on_raised` on the thread in which it is raised."""

    class Reporting(LeaseLost):
        def __init__(self, *args: Any) -> None:
            super().__init__(*(args or error.args))
            on_raised()

        def __reduce__(self) -> tuple[Any, ...]:
            return LeaseLost, self.args

    Reporting.__name__, Reporting.__qualname__ = LeaseLost.__name__, LeaseLost.__qualname__
    Reporting.__module__ = LeaseLost.__module__
    return Reporting


class _InGreenlet:
    """Interrupt of a greenlet, thrown from its hub: while the hub runs, the greenlet does not.

    Args:
        greenlet: Greenlet that runs the body.
        call_in_hub: Lets the hub call a function; may be called from any greenlet.
    """

    def __init__(self, greenlet: Any, call_in_hub: Callable[[Callable[[], None]], object]) -> None:
        self._greenlet = greenlet
        self._call_in_hub = call_in_hub
        self._is_armed = True

    def trigger(self, error: LeaseLost | None = None) -> None:
        self._call_in_hub(partial(self._throw, error or LeaseLost()))

    def disarm(self) -> None:
        self._is_armed = False

    def _throw(self, error: LeaseLost) -> None:
        if self._is_armed:
            self._is_armed = False
            self._greenlet.throw(error)


def _in_gevent() -> _InGreenlet:
    import gevent  # noqa: PLC0415  # only where it is in use

    return _InGreenlet(gevent.getcurrent(), gevent.get_hub().loop.run_callback)


def _in_eventlet() -> _InGreenlet:
    from eventlet import hubs  # noqa: PLC0415  # only where it is in use
    from eventlet.greenthread import getcurrent  # noqa: PLC0415

    return _InGreenlet(getcurrent(), partial(hubs.get_hub().schedule_call_global, 0))
