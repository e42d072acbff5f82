"""The keeper of the prefork pool: it lives in the worker's main process.

A task that holds the interpreter lock for minutes starves every thread of its own process, and a
child that is killed can give nothing back. So each child only tells the main process, through a
pipe made before the fork, which lease it took and which it gave back. There the leases are renewed,
and each child's pidfd is watched: what a child held when it died is released, once it is dead.

Back to the child goes a page of shared memory, the board, on which it reads how each lease stands;
and if one is lost a signal, which interrupts the body.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import interrupt
from .board import Board
from .child_end import ChildEnd
from .redlock import Lease, Redlock
from .redlock.bell import Bell
from .redlock.errors import RedlockError
from .redlock.lease import task_of
from .redlock.lock import DONE_S

logger = logging.getLogger(__name__)
_RETRY_S = 0.05
PROVISIONAL_S = 10.0
"""So long a done mark lasts of which it is not known yet whether it will be needed. Celery takes up
to 5 s to find that a pool process is dead (seen)."""
_VERDICT_WITHIN_S = 60.0
is_supported = hasattr(os, "pidfd_open") and interrupt.SIGNAL is not None


@dataclass(slots=True, eq=False)
class _Held:
    """A lease that a child holds, as the main process knows it."""

    lease: Lease
    pid: int
    slot: int
    min_hold_until: float
    done: str | None
    comes_again: bool | None

    @property
    def mark(self) -> tuple[str | None, float]:
        """Which done mark to leave behind it, and for how long, in seconds."""
        if self.comes_again:
            return None, 0.0
        # As long as Celery has not said what becomes of the message, no copy of it may run.
        return self.done, PROVISIONAL_S if self.comes_again is None else DONE_S


@dataclass(slots=True)
class _Child:
    """A pool process that holds leases, or did."""

    pidfd: int
    held: dict[str, _Held] = field(default_factory=dict)


class MainKeeper:
    """The main process's side: renews what the children hold, releases what the dead held.

    Args:
        new_redlock: Makes the lock that renews and releases, with connections of its own.
    """

    def __init__(self, new_redlock: Callable[[], Redlock]) -> None:
        self._new_redlock = new_redlock
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._board = Board()
        self._bell = Bell()
        self._children: dict[int, _Child] = {}
        self._unreleased: list[_Held] = []
        self._undecided: deque[tuple[float, _Held]] = deque()
        self._verdicts: deque[tuple[str, bool]] = deque()
        self._rest = b""
        self._redlock: Redlock | None = None
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def child_end(self, index: int, redlock: Redlock) -> ChildEnd:
        """In a pool process: return its way to here, for the leases of `redlock`."""
        os.close(self._reading)
        return ChildEnd(self._writing, self._board, index, redlock)

    def start(self) -> None:
        """Start the thread."""
        self._redlock = self._new_redlock()
        self._thread = threading.Thread(target=self._run, name="redlock-pool-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """After the pool has ended: release what its processes left, and end the thread."""
        thread, self._thread = self._thread, None
        if thread:
            self._is_stopping = True
            self._bell.ring()
            thread.join()

    def hear_verdict(self, task_id: str, *, comes_again: bool) -> None:
        """On the main thread: what becomes of a task whose process dies, or died.

        If its message was acknowledged, and its end is stored, other copies have to end, too: one
        that ran the task again might kill the next process, and so on without end.
        """
        self._verdicts.append((task_id, comes_again))
        self._bell.ring()

    def _run(self) -> None:
        redlock = self._redlock
        if redlock is None:
            raise RuntimeError("not started")
        with contextlib.suppress(RedlockError):
            redlock.check()
        while not self._is_stopping:
            try:
                self._step(redlock)
            except Exception:
                logger.exception("pool keeper failed, it goes on")
                self._bell.wait(_RETRY_S)
        self._step(redlock)
        redlock.close()

    def _step(self, redlock: Redlock) -> None:
        """Wait for news of the children, and act on it."""
        timeout = None
        if self._unreleased:
            timeout = _RETRY_S
        if self._is_stopping:
            timeout = 0.0
        by_pidfd = {child.pidfd: pid for pid, child in self._children.items()}
        poll = select.poll()
        for fd in (self._reading, self._bell.fd, *by_pidfd):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if timeout is None else timeout * 1000)]
        self._bell.clear()
        # First all that was said: a child may have given back what it held before it died.
        for message in self._messages():
            self._hear(redlock, message)
        for fd in ready:
            if fd in by_pidfd:
                self._bury(by_pidfd[fd])
        self._hear_verdicts(redlock)
        self._release_what_is_left(redlock)

    def _messages(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                data = os.read(self._reading, 65536)
            except BlockingIOError:
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _hear(self, redlock: Redlock, message: dict[str, Any]) -> None:
        pid = message["pid"]
        child = self._children.get(pid)
        if "give" in message:
            held = child.held.pop(message["give"], None) if child else None
            if held:
                self._forget(redlock, held)
            return
        held = self._held_by(redlock, pid, message)
        if child is None:
            try:
                child = self._children[pid] = _Child(os.pidfd_open(pid))
            except ProcessLookupError:
                self._unreleased.append(held)
                return
        child.held[held.lease.owner] = held
        self._board.post(held.slot, held.lease)
        redlock.keeper.keep(held.lease)

    def _held_by(self, redlock: Redlock, pid: int, message: dict[str, Any]) -> _Held:
        lease = Lease(
            key=message["key"],
            owner=message["take"],
            token=message["token"],
            ttl_ms=message["ttl_ms"],
            deadline=message["deadline"],
            clock=redlock.clock,
            acquired_at=message["acquired_at"],
            hold_until=message["hold_until"],
            superseded=message["superseded"],
        )
        held = _Held(
            lease, pid, message["slot"], message["min_hold_until"], message["done"],
            message["comes_again"],
        )  # fmt: skip
        lease.refresh = lambda _: self._refresh(held)
        lease.on_extended = lambda lease: self._board.post(held.slot, lease)
        lease.on_lost = lambda _: self._tell_lost(held)
        return held

    def _refresh(self, held: _Held) -> None:
        """See whether the child gives the lease back: before its message is heard, if need be."""
        if self._board.is_being_given_back(held.slot, held.lease):
            held.lease.is_released = True

    def _forget(self, redlock: Redlock, held: _Held) -> None:
        held.lease.is_released = True
        redlock.keeper.forget(held.lease)

    def _tell_lost(self, held: _Held) -> None:
        """On the keeper's thread: let the child know, and interrupt its body."""
        self._board.post(held.slot, held.lease)
        child = self._children.get(held.pid)
        if child and interrupt.SIGNAL is not None:
            # Through the pidfd: the number may be another process's by now.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(child.pidfd, interrupt.SIGNAL)

    def _bury(self, pid: int) -> None:
        child = self._children.pop(pid)
        os.close(child.pidfd)
        for held in child.held.values():
            if not self._board.is_given_back(held.slot, held.lease):
                logger.warning(
                    "pool process died, its lock is released key=%s owner=%s pid=%d",
                    held.lease.key, held.lease.owner, pid,
                )  # fmt: skip
                self._unreleased.append(held)

    def _hear_verdicts(self, redlock: Redlock) -> None:
        """Note what Celery said; it may do so before the death or after it."""
        now = redlock.clock.now()
        while self._undecided and self._undecided[0][0] < now - _VERDICT_WITHIN_S:
            self._undecided.popleft()
        verdicts = {}
        while self._verdicts:
            task_id, comes_again = self._verdicts.popleft()
            verdicts[task_id] = comes_again
        if not verdicts:
            return
        released = [held for _, held in self._undecided]
        holding = [held for child in self._children.values() for held in child.held.values()]
        for held in (*holding, *self._unreleased, *released):
            held.comes_again = verdicts.get(str(task_of(held.lease.owner)), held.comes_again)
        # Once more, for the mark.
        self._unreleased += [held for held in released if held.comes_again is False]
        self._undecided = deque(one for one in self._undecided if one[1].comes_again is not False)

    def _release_what_is_left(self, redlock: Redlock) -> None:
        unreleased, self._unreleased = self._unreleased, []
        for held in unreleased:
            now = redlock.clock.now()
            keep, (done, done_ttl) = max(0.0, held.min_hold_until - now), held.mark
            try:
                redlock.release(held.lease, keep=keep, done=done, done_ttl=done_ttl)
            except RedlockError as error:
                if now < held.lease.deadline:
                    self._unreleased.append(held)
                    continue
                logger.warning("lock not released key=%s error=%s", held.lease.key, error)
            if held.done and held.comes_again is not False:
                self._undecided.append((now, held))
