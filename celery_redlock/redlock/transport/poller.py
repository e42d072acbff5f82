"""Wait until one of several sockets is ready, by the means of this platform."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, Protocol

from celery_redlock.redlock.threads.native import is_eventlet

_LONGEST_S = 86_400.0
"""Longest wait, after which the caller waits again: the kernel counts ms in 31 bits."""


class Poller(Protocol):
    """A set of descriptors and a wait for any of them."""

    def register(self, fd: int, *, writing: bool) -> None:
        """Add `fd`, or change whether to wait for it to be writable as well."""

    def unregister(self, fd: int) -> None:
        """Remove `fd`."""

    def wait(self, seconds: float) -> Sequence[int]:
        """Return the descriptors that are ready, after `seconds` at the latest."""


class _Poll:
    def __init__(self) -> None:
        self._poll = select.poll()

    def register(self, fd: int, *, writing: bool) -> None:
        self._poll.register(fd, select.POLLIN | (select.POLLOUT if writing else 0))

    def unregister(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, seconds: float) -> Sequence[int]:
        return [fd for fd, _ in self._poll.poll(min(seconds, _LONGEST_S) * 1000)]


class _Descriptors:
    """Descriptors of a poller that passes them all to each wait."""

    def __init__(self) -> None:
        self._is_writing: dict[int, bool] = {}

    def register(self, fd: int, *, writing: bool) -> None:
        self._is_writing[fd] = writing

    def unregister(self, fd: int) -> None:
        self._is_writing.pop(fd, None)


class _Select(_Descriptors):
    """Poller for Windows, which has no poll."""

    def wait(self, seconds: float) -> Sequence[int]:
        writing = [fd for fd, wanted in self._is_writing.items() if wanted]
        longest = min(seconds, _LONGEST_S)
        readable, writable, _ = select.select(list(self._is_writing), writing, [], longest)
        return list({*readable, *writable})


class _Eventlet(_Descriptors):
    """Poller in eventlet's hub: eventlet removes poll, and its select is not reliable.

    In its select each ready socket switches to the greenlet, and the second switch cuts short the
    greenlet's next wait, even in the body of a task (eventlet#551). Here sockets are only noted,
    and one switch follows.
    """

    def wait(self, seconds: float) -> Sequence[int]:
        from eventlet import getcurrent, hubs  # noqa: PLC0415  # only where it is in use

        hub, switch, throw = hubs.get_hub(), getcurrent().switch, getcurrent().throw
        ready: set[int] = set()
        timers: list[Any] = []
        listeners: list[Any] = []

        def note(fd: int) -> None:
            if timers and not ready:
                wake()
            ready.add(fd)

        def wake() -> None:
            timers.append(hub.schedule_call_global(0, switch))

        # With a switch, for a time of 0, the hub would go on before it has polled.
        timers.append(hub.schedule_call_global(seconds, wake))
        try:
            for fd, is_writing in self._is_writing.items():
                listeners.append(hub.add(hub.READ, fd, note, throw, lambda: None))
                if is_writing:
                    listeners.append(hub.add(hub.WRITE, fd, note, throw, lambda: None))
            hub.switch()
        finally:
            for listener in listeners:
                hub.remove(listener)
            for timer in timers:
                timer.cancel()
            # Sockets that become ready from now on wake nobody.
            timers.clear()
        return list(ready)


def new_poller() -> Poller:
    """Return the best poller for this process."""
    if is_eventlet():
        return _Eventlet()
    return _Poll() if hasattr(select, "poll") else _Select()
