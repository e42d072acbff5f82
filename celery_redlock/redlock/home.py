"""A real thread beside greenlets, and its way back to where they run.

Locks, queues and events are those of the greenlets there, logging's among them. A real thread that
meets one of them locked waits for ever: whoever unlocks it wakes a greenlet of its own thread. So
what runs code of others (logs, observers, signals) is called at home: where the thread was started.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from .bell import Bell
from .native import is_green, original


class _Home(Protocol):
    def call(self, function: Callable[[], Any]) -> None:
        """Have a greenlet there call `function`."""

    def close(self) -> None:
        """Give back what the way there needs."""


_homes: dict[int, _Home] = {}
"""The home of each real thread that was started among greenlets."""


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call `function` at home: now, unless this is a real thread beside greenlets."""
    home = _homes.get(original("_thread", "get_ident")()) if _homes else None
    if home:
        home.call(partial(function, *args, **kwargs))
    else:
        function(*args, **kwargs)


def start_thread(run: Callable[[], None], name: str) -> None:
    """Run a function on a real daemon thread; where it is started from is its home."""
    if not is_green():
        threading.Thread(target=run, name=name, daemon=True).start()
        return
    home = _InGevent() if "gevent.monkey" in sys.modules else _InEventlet()
    original("_thread", "start_new_thread")(_run_away, (run, home))


def start_beside(run: Callable[[], None], name: str) -> None:
    """Run a function on another thread; among greenlets, in another greenlet of this thread."""
    if is_green():
        # Not a Thread: it takes locks, which a real thread beside greenlets must not.
        sys.modules["_thread"].start_new_thread(run, ())
    else:
        threading.Thread(target=run, name=name, daemon=True).start()


def _run_away(run: Callable[[], None], home: _Home) -> None:
    ident = original("_thread", "get_ident")()
    _homes[ident] = home
    try:
        run()
    finally:
        del _homes[ident]
        home.close()


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
    """Its hub can be woken by a descriptor only."""

    def __init__(self) -> None:
        import eventlet  # noqa: PLC0415  # only where it is in use

        self._spawn = eventlet.spawn_n
        self._wait: Callable[..., Any] = eventlet.hubs.trampoline
        self._calls: deque[Callable[[], Any]] = deque()
        self._bell = Bell()
        self._is_closed = False
        self._spawn(self._listen)

    def call(self, function: Callable[[], Any]) -> None:
        self._calls.append(function)
        self._bell.ring()

    def close(self) -> None:
        self._is_closed = True
        self._bell.ring()

    def _listen(self) -> None:
        while not self._is_closed:
            self._wait(self._bell.fd, read=True)
            self._bell.clear()
            while self._calls:
                self._spawn(self._calls.popleft())
        self._bell.close()
