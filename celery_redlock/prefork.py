"""The keeper of the prefork pool: it lives in the worker's main process.

A task that holds the interpreter lock for minutes starves every thread of its own process, and a
child that is killed can give nothing back. So each child only tells the main process, through a
pipe made before the fork, which lease it took and which it gave back. There the leases are renewed,
and each child's pidfd is watched: what a child held when it died is released, once it is dead.

Back to the child goes a page of shared memory, the board: for each lease its present deadline and
whether it is lost; then a signal, which interrupts the body.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import select
import signal
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import interrupt
from .redlock import Lease, Redlock
from .redlock.bell import Bell
from .redlock.errors import RedlockError
from .redlock.lease import task_of
from .redlock.lock import DONE_S

logger = logging.getLogger(__name__)
_RECORD = struct.Struct("=16sdB7x16sB7x")
_CHILDS_PART = 32
"""Where in a record begins what the child writes."""
_NESTED = 8
_SLOTS = 4096 * _NESTED
_PIPE_BUF = 4096
_RETRY_S = 0.05
PROVISIONAL_S = 10.0
"""So long a done mark lasts of which it is not known yet whether it will be needed. Celery takes up
to 5 s to find that a pool process is dead (seen)."""
_VERDICT_WITHIN_S = 60.0
is_supported = hasattr(os, "pidfd_open") and interrupt.SIGNAL is not None


def _nonce(lease: Lease) -> bytes:
    """Return what tells a lease from every other: the random part of its owner."""
    return bytes.fromhex(lease.owner[:32])


class Board:
    """Shared memory: a record for each lease that a child may hold at a time.

    The main process writes whose record it is, the deadline and whether the lease is lost; the
    child writes, behind that, which lease it gives back, and whether it has.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SLOTS * _RECORD.size)

    def post(self, slot: int, lease: Lease) -> None:
        """Main process: write how `lease` stands."""
        record = _RECORD.pack(_nonce(lease), lease.deadline, lease.is_lost, b"", 0)
        at = slot * _RECORD.size
        self._map[at : at + _CHILDS_PART] = record[:_CHILDS_PART]

    def read(self, slot: int, lease: Lease) -> None:
        """Child: bring `lease` up to date, if the record is its own."""
        nonce, deadline, is_lost, *_ = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        if nonce == _nonce(lease):
            lease.deadline = max(lease.deadline, deadline)
            lease.is_lost = lease.is_lost or bool(is_lost)

    def give_back(self, slot: int, lease: Lease, *, is_done: bool) -> None:
        """Child: say that `lease` is being given back, or that it has been."""
        record = _RECORD.pack(b"", 0.0, 0, _nonce(lease), is_done)
        at = slot * _RECORD.size
        self._map[at + _CHILDS_PART : at + _RECORD.size] = record[_CHILDS_PART:]

    def is_being_given_back(self, slot: int, lease: Lease) -> bool:
        """Main process: tell whether the child has said so, or that it has been."""
        *_, nonce, _is_done = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        return bool(nonce == _nonce(lease))

    def is_given_back(self, slot: int, lease: Lease) -> bool:
        """Main process: tell whether the child has said that it has been given back."""
        *_, nonce, is_done = _RECORD.unpack_from(self._map, slot * _RECORD.size)
        return bool(is_done and nonce == _nonce(lease))


class ChildEnd:
    """What a pool process tells the main process.

    Args:
        fd: The writing end of the pipe.
        board: The shared page.
        index: This process's place in the pool; no two that live share one.
    """

    def __init__(self, fd: int, board: Board, index: int) -> None:
        self._fd = fd
        self._board = board
        self._free = [index * _NESTED + nth for nth in range(_NESTED) if index < _SLOTS // _NESTED]
        self._slots: dict[Lease, int] = {}
        # What was given back while the pipe was full; until it is told, its slot says so.
        self._untold: deque[tuple[int, dict[str, Any]]] = deque()

    def take(
        self, lease: Lease, min_hold_until: float, done: str | None, *, comes_again: bool
    ) -> bool:
        """Hand `lease` to the main process, to be renewed and, should we die, released.

        Args:
            lease: The lease.
            min_hold_until: Until when its key stays in any case, seconds on the boot-time clock.
            done: The mark for other copies of its message, should it end with our death; None when
                there are none.
            comes_again: Whether its message comes again if this process is killed.

        Returns:
            False when it can't be told now: the pipe is full, or there are too many leases.
        """
        self._tell_the_rest()
        if not self._free:
            return False
        slot = self._free.pop()
        message = {
            "take": lease.owner, "pid": os.getpid(), "slot": slot, "key": lease.key,
            "superseded": lease.superseded,
            "token": lease.token, "ttl_ms": lease.ttl_ms, "deadline": lease.deadline,
            "acquired_at": lease.acquired_at, "hold_until": lease.hold_until,
            "min_hold_until": min_hold_until, "done": done,
            # Otherwise it is for Celery to say.
            "comes_again": comes_again or None,
        }  # fmt: skip
        # Before it is told: whatever strikes in between, it will be given back.
        self._slots[lease] = slot
        if not self._tell(message):
            del self._slots[lease]
            self._free.append(slot)
            return False
        lease.refresh = self._refresh
        return True

    def begin_to_give_back(self, lease: Lease) -> None:
        """Say that `lease` is being given back: it is no loss that it can't be renewed any more."""
        slot = self._slots.get(lease)
        if slot is not None:
            self._board.give_back(slot, lease, is_done=False)

    def give_back(self, lease: Lease) -> None:
        """Say that `lease` is over."""
        slot = self._slots.pop(lease, None)
        if slot is not None:
            lease.refresh = None
            self._board.give_back(slot, lease, is_done=True)
            self._untold.append((slot, {"give": lease.owner, "pid": os.getpid()}))
            self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        while self._untold and self._tell(self._untold[0][1]):
            slot, _ = self._untold.popleft()
            self._free.append(slot)

    def _refresh(self, lease: Lease) -> None:
        slot = self._slots.get(lease)
        if slot is not None:
            self._board.read(slot, lease)

    def _tell(self, message: dict[str, Any]) -> bool:
        line = json.dumps(message).encode() + b"\n"
        # Longer ones could be mixed with those of other children.
        if len(line) > _PIPE_BUF:
            return False
        try:
            os.write(self._fd, line)
        except OSError:
            return False
        return True


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

    def child_end(self, index: int) -> ChildEnd:
        """In a pool process: return its way to here."""
        os.close(self._reading)
        return ChildEnd(self._writing, self._board, index)

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
