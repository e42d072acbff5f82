"""Stands in for select.poll: which of a process's descriptors are ready, and waits for one."""

from __future__ import annotations

from collections.abc import Sequence

from .process import Process
from .world import Task


class Poller:
    """Stands in for select.poll."""

    __slots__ = ("_fds", "_process", "_readable", "_task", "_writing")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._fds: set[int] = set()
        # As the keys of a dict: in order, so that a run repeats exactly.
        self._readable: dict[int, None] = {}
        self._writing: dict[int, None] = {}
        self._task: Task | None = None

    def register(self, fd: int, *, writing: bool) -> None:
        if writing:
            self._writing[fd] = None
        elif self._writing:
            self._writing.pop(fd, None)
        if fd in self._fds:
            return
        self._fds.add(fd)
        if end := self._process.ends.get(fd):
            end.poller = self
            if end.is_readable():
                self._readable[fd] = None

    def unregister(self, fd: int) -> None:
        self._fds.discard(fd)
        self._readable.pop(fd, None)
        self._writing.pop(fd, None)

    def wait(self, seconds: float) -> Sequence[int]:
        """Return what is ready, as soon as something is."""
        process = self._process
        process.step()
        if self._readable or seconds <= 0 or (self._writing and self._writable()):
            return self._ready()
        world = process.world
        self._task = world.current
        world.wait(process.until(seconds))
        self._task = None
        process.step()
        return self._ready()

    def _ready(self) -> Sequence[int]:
        ready = list(self._readable)
        if self._writing:
            ready += [fd for fd in self._writable() if fd not in self._readable]
        return ready

    def _writable(self) -> list[int]:
        ends = self._process.ends
        return [fd for fd in self._writing if fd in ends and ends[fd].is_writable()]

    def has_data(self, fd: int) -> None:
        """Note that this is readable; wake who waits."""
        if fd in self._fds:
            self._readable[fd] = None
            if self._task:
                self._process.world.wake(self._task)

    def has_room(self, fd: int) -> None:
        """Note that this may be writable; wake who waits for that."""
        if fd in self._writing and self._task:
            self._process.world.wake(self._task)

    def is_empty(self, fd: int) -> None:
        """Note that this is not readable any more."""
        self._readable.pop(fd, None)
